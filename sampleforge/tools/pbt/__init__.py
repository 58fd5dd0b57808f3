"""Population-based training across runs: each member is a run of its own."""

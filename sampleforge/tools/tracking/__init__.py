"""Sinks that a run is sent to beside its own files: a CSV file, Weights & Biases, trackio."""

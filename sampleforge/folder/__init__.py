"""What lies in a run folder: config, checkpoints, summary; and how it is written."""

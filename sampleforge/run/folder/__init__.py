"""The run folder: config, checkpoints, saved replays and summary, and how they are written."""

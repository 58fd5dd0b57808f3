"""What a run reports: statistics, metrics.jsonl, TensorBoard events, the states of the workers,
and the verdict on what limits it."""

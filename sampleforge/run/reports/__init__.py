"""What a run reports: screen messages, metrics.jsonl, TensorBoard events, log.txt and figures."""

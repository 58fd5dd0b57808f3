"""Building blocks in shared memory: arrays, rings, weights, records, counters, wake-ups."""

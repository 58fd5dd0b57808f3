"""Benchmark mode: the rate of the simulator alone, the rate of the whole system, and its
bottleneck."""

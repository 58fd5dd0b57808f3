"""Schedules of the learning rate and of other hyperparameters, and the exploration rate of each env
row, as pure functions of numbers.
"""

from __future__ import annotations

import torch

MIN_LEARNING_RATE = 1e-6
MAX_LEARNING_RATE = 1e-2
"""Bounds of kl_adaptive: without them the rate would grow without limit on a policy that no longer
changes."""


def kl_adaptive(current: float, kl: float, target: float) -> float:
    """Return the next learning rate from the current one and the KL of the last batch.

    KL > 2 target: rate / 1.5; KL < target / 2: rate * 1.5; otherwise unchanged. The rate stays
    within [MIN_LEARNING_RATE, MAX_LEARNING_RATE]; a rate that the user set outside these bounds is
    not pulled inside. A KL of NaN (no valid row in the batch) changes nothing.
    """
    if kl > 2.0 * target:
        return max(current / 1.5, min(current, MIN_LEARNING_RATE))
    if kl < target / 2.0:
        return min(current * 1.5, max(current, MAX_LEARNING_RATE))
    return current


def between(first: float, last: float, progress: float) -> float:
    """Return the value on the line from ``first`` at progress 0 to ``last`` at 1 (clamped)."""
    return first + (last - first) * min(1.0, max(0.0, progress))


def epsilon_ladder(rows: int, base: float, exponent: float) -> torch.Tensor:
    """Return Ape-X's fixed epsilon of each env row, float64 [rows].

    eps_i = base ** (1 + exponent * i / (rows - 1)) (arXiv 1803.00933, section 4); a single row has
    ``base``."""
    assert rows >= 1 and 0 <= base <= 1
    step = torch.arange(rows, dtype=torch.float64) / max(1, rows - 1)
    return torch.full((rows,), base, dtype=torch.float64) ** (1 + exponent * step)

"""Learning-rate schedules: pure functions of numbers."""

from __future__ import annotations

MIN_LEARNING_RATE = 1e-6
MAX_LEARNING_RATE = 1e-2
"""Bounds of kl_adaptive, which would otherwise run away on a policy that no longer moves."""


def constant(initial: float) -> float:
    """The initial rate, always."""
    return initial


def linear(initial: float, progress: float) -> float:
    """From ``initial`` at progress 0 to 0 at progress 1; beyond is clamped."""
    return initial * (1.0 - min(max(progress, 0.0), 1.0))


def kl_adaptive(current: float, kl: float, target: float) -> float:
    """The next rate from the current one and the KL of the last batch.

    KL > 2 target: rate / 1.5; KL < target / 2: rate * 1.5; else unchanged. Stays within
    [MIN_LEARNING_RATE, MAX_LEARNING_RATE], but never pulls a rate that the user set beyond these
    bounds back inside. A KL that is not a number (no valid row in the batch) changes nothing.
    """
    if kl > 2.0 * target:
        return max(current / 1.5, min(current, MIN_LEARNING_RATE))
    if kl < target / 2.0:
        return min(current * 1.5, max(current, MAX_LEARNING_RATE))
    return current


def between(first: float, last: float, progress: float) -> float:
    """From ``first`` at progress 0 to ``last`` at 1, in a straight line."""
    return first + (last - first) * min(1.0, max(0.0, progress))

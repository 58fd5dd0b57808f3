"""The judgement whether a number, such as the memory of a process, grows steadily.

What warms up grows fast at first and then no more; a leak grows at the same rate for ever. So the
quarters of a window are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

WINDOW = 16
"""Number of samples that are judged together."""
LEAST_SAMPLES = 24
"""Number of samples before the first judgement, so that there are some before its window."""
EVEN = 1 / 2
"""Fraction of the largest rate of growth between two quarters that the smallest one must have."""


class Growth(NamedTuple):
    """Growth by ``amount`` while the clock that the samples were taken by moved on by
    ``duration``."""

    amount: float
    duration: float

    @property
    def rate(self) -> float:
        return self.amount / self.duration


Sample = tuple[float, float]
"""When a sample was taken, by any clock, and the number."""


def grows_steadily(samples: Sequence[Sample]) -> bool:
    """Return whether ``samples`` grow from each quarter of them to the next, and at about the same
    rate each time."""
    size = len(samples)
    quarters = [samples[i * size // 4 : (i + 1) * size // 4] for i in range(4)]
    middle = [(median(at for at, _ in each), median(n for _, n in each)) for each in quarters]
    rates = [(n - before) / (at - since) for (since, before), (at, n) in pairwise(middle)]
    return min(rates) > 0 and min(rates) >= EVEN * max(rates)


def growth_of(samples: Sequence[Sample], least: float) -> Growth | None:
    """Return the growth of at least `WINDOW` samples; None if it is not steady, or less than
    ``least``."""
    if len(samples) < WINDOW or not grows_steadily(samples):
        return None
    (begin, first), (end, last) = samples[0], samples[-1]
    return Growth(last - first, end - begin) if last - first >= least else None


class GrowthWatch:
    """Watches one number. A growth counts if it is steady, and the number is now by at least
    ``least`` higher than it was before the growth: what grows and falls in turn does not count.

    The newest `WINDOW` samples, at least ``spacing`` apart, are judged, and all that are kept. If
    twice as many are kept, every other one is dropped and the spacing doubles: so a slow growth is
    noticed too, only later, and the memory of the watch is constant.
    """

    def __init__(self, least: float, spacing: float) -> None:
        self._least = least
        self._spacing = spacing
        self._samples: list[Sample] = []

    def add(self, at: float, value: float) -> None:
        """Add a sample taken at ``at`` by any clock; it is left out if it is too close to the last
        one."""
        if self._samples and at - self._samples[-1][0] < self._spacing:
            return
        if len(self._samples) == 2 * WINDOW:
            del self._samples[::2]
            self._spacing *= 2
        self._samples.append((at, value))

    @property
    def growth(self) -> Growth | None:
        """The growth of the newest samples, or else of all that are kept; None if neither grow."""
        return self._judge(len(self._samples) - WINDOW) or self._judge(0)

    def _judge(self, since: int) -> Growth | None:
        """Return the growth of the samples from index ``since`` on, or None."""
        if len(self._samples) < LEAST_SAMPLES:
            return None
        growth = growth_of(self._samples[since:], self._least)
        highest = max(value for _, value in self._samples[: since + 1])
        return growth if self._samples[-1][1] - highest >= self._least else None

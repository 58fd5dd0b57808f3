"""Histograms of TD errors and priorities, over many orders of magnitude."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampleforge.replay.exchange import SampleRequests
from sampleforge.shared.arrays import SharedArrays, SharedViews

_PER_OCTAVE = 4
_LOWEST, _HIGHEST = -24, 24  # octaves: from 6e-8 to 1.7e7
BINS = (_HIGHEST - _LOWEST) * _PER_OCTAVE
_MOST = 1 << 16
"""Number of a tree's leaves that are counted, in 1 to 3 ms. All 2M of the default would take
22 ms."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """A histogram of n bins: ``counts`` [n], their upper ``limits`` [n], and ``low``, the lower
    limit of the first."""

    low: float
    limits: npt.NDArray[np.float64]
    counts: Counts


def count_positive(values: npt.NDArray[np.float64]) -> Counts:
    """Return the number of the finite ``values`` [N] in each of `BINS` bins, four per octave.

    Values of 0 or less are left out; values beyond the ends count in the first or last bin. The
    bin is the upper bits of the float64 (exponent and two bits of the mantissa), without a
    logarithm.
    """
    positive = np.ascontiguousarray(values[values > 0])
    bins = (positive.view(np.int64) >> 50) - (1023 + _LOWEST) * _PER_OCTAVE
    return np.bincount(bins.clip(0, BINS - 1), minlength=BINS)


def _limit(edge: int) -> float:
    """Return the lower limit of bin ``edge``."""
    octave, quarter = divmod(edge, _PER_OCTAVE)
    return math.ldexp(1 + quarter / _PER_OCTAVE, octave + _LOWEST)


def histogram(counts: Counts) -> Histogram | None:
    """Return the bins of `count_positive` from the first to the last that is not empty; None if all
    are empty."""
    used = np.flatnonzero(counts)
    if not len(used):
        return None
    first, last = int(used[0]), int(used[-1])
    limits = np.array([_limit(edge) for edge in range(first + 1, last + 2)])
    return Histogram(_limit(first), limits, counts[first : last + 1].copy())


def evenly(leaves: npt.NDArray[np.float64], steps_per_slot: int) -> npt.NDArray[np.float64]:
    """Return every k-th leaf so that at most `_MOST` remain, with a k that is coprime to the steps
    of a slot, so that every row and time occurs."""
    stride = max(1, -(-len(leaves) // _MOST))
    while math.gcd(stride, steps_per_slot) > 1:
        stride += 1
    return leaves[::stride]


class ReplayHistograms(SharedViews):
    """Histograms of TD errors and priorities, which the driver reads for its reports.

    The TD errors are those of the latest batches, which are in the sample requests anyway.
    Priorities are in the shards' own memory: each shard counts them when asked, and the driver
    reads the answer at the next report.
    """

    def __init__(self, sample_requests: SampleRequests, shards: int) -> None:
        self._sample_requests = sample_requests
        self._arrays = SharedArrays({"asked": ((1,), "int64"), "counts": ((shards, BINS), "int64")})
        self._attach()

    def _attach(self) -> None:
        self.asked: Counts = self._arrays["asked"]
        """[1]: number of the driver's requests so far. A shard reads it in every step."""

    def answer(self, shard: int, counts: Counts) -> None:
        """Write the counts of this shard's priorities [BINS]. Called by the shard."""
        self._arrays["counts"][shard] = counts

    def read(self) -> dict[str, Histogram]:
        """Return the histograms that are not empty, by name, and request the next ones. Called by
        the driver."""
        errors = self._sample_requests.errors.reshape(-1).astype(np.float64)
        counts = {"td_error": count_positive(errors), "priority": self._arrays["counts"].sum(0)}
        self.asked[0] += 1
        histograms = {name: histogram(of_all) for name, of_all in counts.items()}
        return {name: each for name, each in histograms.items() if each is not None}

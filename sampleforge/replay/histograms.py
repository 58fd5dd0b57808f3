"""What TD errors and priorities are like: counts over many orders of magnitude."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampleforge.replay.exchange import SampleRequests
from sampleforge.shared.arrays import SharedArrays

_PER_OCTAVE = 4
_LOWEST, _HIGHEST = -24, 24  # octaves: from 6e-8 to 1.7e7
BINS = (_HIGHEST - _LOWEST) * _PER_OCTAVE
_MOST = 1 << 16
"""Leaves of a tree that are looked at: 1 to 3 ms. All 2M of the default would take 22."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """``counts`` [n] of values up to each of ``limits`` [n], the first from ``low`` on."""

    low: float
    limits: npt.NDArray[np.float64]
    counts: Counts


def count_positive(values: npt.NDArray[np.float64]) -> Counts:
    """How many of the finite ``values`` [N] lie in each of `BINS` bins, four per octave; those of 0
    or less are left out, those beyond the ends count as the ends.

    The upper bits of a float64 are its bin: exponent and two bits of the mantissa. No logarithm.
    """
    positive = np.ascontiguousarray(values[values > 0])
    bins = (positive.view(np.int64) >> 50) - (1023 + _LOWEST) * _PER_OCTAVE
    return np.bincount(bins.clip(0, BINS - 1), minlength=BINS)


def _limit(edge: int) -> float:
    """The value at which bin ``edge`` begins."""
    octave, quarter = divmod(edge, _PER_OCTAVE)
    return math.ldexp(1 + quarter / _PER_OCTAVE, octave + _LOWEST)


def histogram(counts: Counts) -> Histogram | None:
    """The part of `count_positive`'s bins that holds anything, None if nothing does."""
    used = np.flatnonzero(counts)
    if not len(used):
        return None
    first, last = int(used[0]), int(used[-1])
    limits = np.array([_limit(edge) for edge in range(first + 1, last + 2)])
    return Histogram(_limit(first), limits, counts[first : last + 1].copy())


def evenly(leaves: npt.NDArray[np.float64], steps_per_slot: int) -> npt.NDArray[np.float64]:
    """Every k-th of too many leaves, for a k that comes round to every row and time of a slot."""
    stride = max(1, -(-len(leaves) // _MOST))
    while math.gcd(stride, steps_per_slot) > 1:
        stride += 1
    return leaves[::stride]


class ReplayHistograms:
    """TD errors and priorities, for the driver to read whenever it reports.

    The TD errors are those in the tickets: of the latest batches, where they lie anyway. Priorities
    are in the shards' own memory, so each shard counts when it is asked, and the answer is read at
    the next report.
    """

    def __init__(self, sample_requests: SampleRequests, shards: int) -> None:
        arrays = SharedArrays({"asked": ((1,), "int64"), "counts": ((shards, BINS), "int64")})
        self.__setstate__((sample_requests, arrays))

    def __getstate__(self) -> tuple[SampleRequests, SharedArrays]:
        return self._sample_requests, self._arrays

    def __setstate__(self, state: tuple[SampleRequests, SharedArrays]) -> None:
        self._sample_requests, self._arrays = state
        self.asked: Counts = self._arrays["asked"]
        """[1]: how often the driver has asked. A shard looks at it in every step."""

    def answer(self, shard: int, counts: Counts) -> None:
        """Shard: its priorities."""
        self._arrays["counts"][shard] = counts

    def read(self) -> dict[str, Histogram]:
        """Driver: by name, those that hold anything; and ask for the next."""
        errors = self._sample_requests.errors.reshape(-1).astype(np.float64)
        counts = {"td_error": count_positive(errors), "priority": self._arrays["counts"].sum(0)}
        self.asked[0] += 1
        found = {name: histogram(of_all) for name, of_all in counts.items()}
        return {name: made for name, made in found.items() if made is not None}

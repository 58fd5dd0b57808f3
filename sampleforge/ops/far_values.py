"""Values that are not finite, and values far beyond typical sizes: a number like 1e8 among numbers
near 1 is finite, but it is an error of a simulator more often than a measurement.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SMALL = 8192
"""Number of elements up to which a dot product is faster than checking each element, and up to
which BLAS uses one thread."""


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a contiguous array of floats holds neither NaN nor inf.

    x . x is NaN or inf if one element of x is: 0.9 us for 16 rows of 4, where np.isfinite takes
    2.4. It is also inf if the sum of squares overflows: then each element is checked.
    """
    flat = array.reshape(-1)
    if flat.size <= SMALL:
        with np.errstate(over="ignore"):
            if flat.dot(flat) < math.inf:
                return True
    return bool(np.isfinite(flat).all())


def rows_not_finite(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows of ``array`` [rows, ...] hold NaN or inf, bool [rows]."""
    finite: npt.NDArray[np.bool_] = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return ~finite


Array = npt.NDArray[Any]

FAR = 1e4
"""A value is far if it is more than so many times the typical size of the values before it. A
reward of 100 for a goal, after rewards of -0.01 for each step, is not."""
FIRST_FAR = 1e6
"""The same while few values were seen: what begins at rest grows far beyond its first values."""
COUNTS_AS = 10.0
"""Far values count as so many typical sizes."""
UNUSUAL = 300.0
"""The first reward of an environment that is so many typical sizes counts like a far one. Further
ones are taken as they are, and so is one whose step terminates the episode: what an environment
gives again is meant, and what ends an episode is its goal, or a failure."""
LEAST = 0.01
"""No typical size is smaller, so that no number up to 100 is far: not a position beside velocities
of 1e-8 at rest, nor a reward of 1 for a goal after many of 1e-9, which are errors of rounding."""
FEW = 10
"""Where fewer values were among all rewards, none is unusual that ends an episode, or whose sign
fewer rewards than this had, and `FIRST_FAR` holds for it: small constant costs of the time say
nothing about the size of what can be won, or lost at the end."""
HORIZON = 100_000
"""Number of values that a typical size covers; older ones fade. So it follows a real change of
scale, by steps that grow geometrically: each far value raises the mean square by its share of
COUNTS_AS ** 2."""

_LEAST_SQUARE = LEAST**2


class TypicalSize:
    """The root mean square of the values so far, at least `LEAST`, and the limit that it sets to
    the next ones.

    ``few``: number of values up to which `FIRST_FAR` holds.
    """

    __slots__ = ("_count", "_few", "_squares")

    def __init__(self, few: int) -> None:
        self._few = few
        self._count = 1.0  # a first value of 0, until `bound` has met another
        self._squares = 0.0

    @property
    def size(self) -> float:
        """The typical size; 0 as long as all values were 0."""
        if self._squares == 0.0:
            return 0.0
        return max(LEAST, float(np.sqrt(self._squares / self._count)))

    @property
    def limit(self) -> float:
        """The largest size of a value that is not far; infinite as long as all values were 0."""
        return self._far * self.size or float("inf")

    @property
    def _far(self) -> float:
        return FAR if self._count > self._few else FIRST_FAR

    def takes(self, values: Array, within: float = FAR) -> bool:
        """Count ``values``, a contiguous array of floats, if it is sure that none is far, not
        finite, or above ``within`` typical sizes; return whether it is. It costs a dot product:
        0.9 us for 16 rows of 4 numbers."""
        # (It does without np.errstate: numpy does not check np.vdot for overflow.)
        squares = float(np.vdot(values, values))
        sizes = self._far if within >= FAR else within
        known = max(self._squares, _LEAST_SQUARE * self._count) if self._squares else 0.0
        limit = sizes * sizes * known
        if not squares * self._count <= limit:
            return False
        self.add(squares, values.size)
        return True

    def begin(self, values: Array) -> None:
        """Take the lower quartile of the sizes of ``values`` for the typical one as long as all
        values were 0: far values among them do not change it, even one from each environment."""
        if self._squares == 0.0 and (some := values[values != 0]).size:
            self._count = 1.0
            self._squares = float(np.quantile(np.abs(some.astype(np.float64)), 0.25)) ** 2

    def bound(
        self, values: Array, others: Array | None = None, spared: Array | None = None
    ) -> Array:
        """Replace far ones among ``values``, floats of any shape that are finite, by `COUNTS_AS`
        typical sizes, in place, and count all; return which ones were replaced, bool. So are
        ``others``, bool, as well; for those that are ``spared``, bool, `FIRST_FAR` holds."""
        self.begin(values)
        far: Array = np.abs(values) > np.float64(self.limit)
        if spared is not None:
            far &= ~spared | (np.abs(values) > np.float64(FIRST_FAR * self.size))
        if others is not None:
            far |= others
        if far.any():
            values[far] = np.sign(values[far]) * COUNTS_AS * self.size
        flat = values.astype(np.float64).reshape(-1)
        self.add(float(flat @ flat), flat.size)
        return far

    def add(self, squares: float, count: int) -> None:
        """Count so many values, given the sum of their squares."""
        self._squares += squares
        self._count += count
        if self._count > HORIZON:
            self._squares *= HORIZON / self._count
            self._count = HORIZON


class FarFound(NamedTuple):
    """Values that were found to be far: their ``number``, and the place and the value of the first
    one."""

    number: int
    at: tuple[int, ...]
    value: float


class Unusual:
    """Which of ``rows`` env rows have given an unusual reward (`UNUSUAL`), and the typical sizes of
    gains and of losses."""

    def __init__(self, rows: int) -> None:
        self._had = np.zeros(rows, np.bool_)
        self._sizes = {1: TypicalSize(few=0), -1: TypicalSize(few=0)}
        self._numbers = {1: 0, -1: 0}
        self._values: set[float] = set()

    def count(self, given: Array) -> None:
        """Count rewards [N] that are not 0, none of which is far."""
        low, high = float(given.min()), float(given.max())
        if len(self._values) < FEW:
            self._values |= {low, high}
        for sign, typical in self._sizes.items():
            if sign * (high if sign > 0 else low) <= 0:
                continue
            own, number = given, given.size
            if low * high < 0:  # arithmetic is faster than a selection
                own = np.maximum(given, 0) if sign > 0 else np.minimum(given, 0)
                number = int(np.count_nonzero(own))
            self._numbers[sign] += number
            typical.add(float(np.vdot(own, own)), number)

    def spared(self, given: Array, ends: Array) -> Array:
        """Count rewards [N] that are not 0, of which those of ``ends`` terminate their episodes;
        return which ones are usual among those of their sign, or may be, as little is known of them
        (`FEW`), bool."""
        spared = np.zeros(given.shape, np.bool_)
        for sign, typical in self._sizes.items():
            own = np.sign(given) == sign
            values = given[own]
            typical.begin(values)
            usual = np.abs(values) <= np.float64(UNUSUAL * typical.size)
            self._numbers[sign] += int(np.count_nonzero(usual))
            if len(self._values) < FEW:
                self._values |= {*np.unique(values[usual])[:FEW].tolist()}
            few = len(self._values) < FEW
            spared[own] = usual if self._numbers[sign] >= FEW else few
            if few:
                spared |= own & ends
            typical.bound(values)
        return spared

    def first(self, unusual: Array) -> Array:
        """Return the first of the ``unusual`` rewards, bool [T, rows], of each row that had none
        before."""
        first: Array = unusual & (unusual.cumsum(0) == 1) & ~self._had
        self._had |= unusual.any(0)
        return first


def bound_rewards(
    typical: TypicalSize,
    reward: Array,
    terminated: Array | None = None,
    seen: Unusual | None = None,
) -> FarFound | None:
    """Replace far rewards in place, in an array of any shape; return them, or None if there are
    none. The typical size is that of the rewards that are not 0, however rare.

    ``seen``: of the rows of ``reward`` [T, rows] so far. The first unusual reward of each row where
    the episode has not ``terminated`` (bool [T, rows]) is replaced, too."""
    some = reward != 0
    given = reward[some]
    if not given.size:
        return None
    if typical.takes(given, FAR if seen is None else UNUSUAL):
        if seen is not None:
            seen.count(given)
        return None
    typical.begin(given)
    first = spared = None
    if seen is not None and terminated is not None:
        spared = seen.spared(given, terminated[some])
        unusual = (np.abs(reward) > np.float64(UNUSUAL * typical.size)) & ~terminated
        unusual[some] &= ~spared
        first = seen.first(unusual)[some]
    before = given.copy()
    far = typical.bound(given, first, spared)
    if not far.any():
        return None
    reward[some] = given
    index = int(np.argmax(far))
    at = tuple(int(i) for i in np.argwhere(some)[index])
    return FarFound(int(far.sum()), at, float(before[index]))


WIDE = 64
"""Rows of a batch whose extremes are taken side by side."""


def extremes(x: Array) -> tuple[Array, Array]:
    """Return the least and the largest of each element of ``x`` [N, ...], N > 0."""
    # Short rows are slow, so many are taken side by side: 16,384 x 17 floats in 70 us, not 890.
    whole = len(x) - len(x) % WIDE
    parts = [x[whole:]]
    if whole:
        wide = x[:whole].reshape(-1, WIDE * x[0].size)
        parts += [f(wide, axis=0).reshape(WIDE, *x.shape[1:]) for f in (np.min, np.max)]
    few = np.concatenate(parts)
    return few.min(axis=0), few.max(axis=0)


class FarFromMean:
    """Finds the numbers of a leaf that are more than ``deviations`` from the mean of their element
    so far. The deviation of an element counts as at least a tenth of the typical size of the leaf:
    a flag that is set for the first time is not far, and nothing is while all were 0. A far number
    counts as one of `COUNTS_AS` deviations, so that a change of scale is followed.

    ``first``: number of observations that are counted only."""

    def __init__(self, shape: tuple[int, ...], deviations: float, first: int) -> None:
        self.mean = np.zeros(shape)
        self.deviation = np.zeros(shape)
        self._deviations = deviations
        self._first = first
        self._count = 0
        self._squares = np.zeros(shape)  # of distances from the mean

    def find(self, x: Array) -> FarFound | None:
        """Count the observations ``x`` [N, *shape], N > 0; return those that are far, None if there
        are none."""
        found = None
        if self._count >= self._first and self.deviation.any():
            low, high = extremes(x)
            limit = self._deviations * self.deviation
            if (np.maximum(self.mean - low, high - self.mean) > limit).any():
                offset = x - self.mean
                far = np.abs(offset) > limit
                at = tuple(int(i) for i in np.argwhere(far)[0])
                found = FarFound(int(far.sum()), at, float(x[at]))
                near = self.mean + np.sign(offset) * COUNTS_AS * self.deviation
                x = np.where(far, near, x)
        self._add(x.astype(np.float64))
        return found

    def _add(self, x: Array) -> None:
        mean, number = x.mean(0), len(x)
        total = self._count + number
        delta = mean - self.mean
        self._squares += ((x - mean) ** 2).sum(0) + delta**2 * (self._count * number / total)
        self.mean += delta * (number / total)
        self._count = total
        variance = self._squares / total
        typical = float(np.mean(variance + self.mean**2))
        self.deviation = np.sqrt(np.maximum(variance, 0.01 * typical))

"""Whether the past tells more of a step than its observation and action do: a policy without
memory then lacks a part of the state.

Two things are looked at. Where observations repeat, the reward and the end of a step: if they
differ after the same observation and action, but hardly where an earlier observation was the same,
too, they follow from what was seen before. Where observations are a few numbers, their changes: if
a quadratic function of observation and action does not foretell them, but a linear one that is
given the step before as well does, they follow from something like a speed that is not shown. What
comes by chance is foretold by neither.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

MOST_STEPS = 1 << 15
"""Number of steps that are kept."""
MANY = 20
"""Number of steps that differed, or that can be compared, from which on their share says
something."""
SURE = 5.0
"""Standard errors by which a share is lower than another one beyond chance, also as the least of
many."""
FARTHEST = 64
"""Number of steps back up to which observations are compared."""
MOST_NUMBERS = 40
"""Numbers of an observation and an action up to which changes are foretold: they have 820
products."""
MOST_CHANGES, LEAST_CHANGES = 1 << 13, 1000
"""Most and least number of changes that are looked at."""
PER_TERM = 4
"""Number of changes that there must be for each number or product that they are foretold by."""
HARDLY, WELL = 0.5, 0.9
"""Parts of the variance of a change: at most the first one is foretold without the past, and at
least the second one with it."""
FEW_VALUES = 16
"""Number of values of an integer up to which it is one-hot where changes are foretold."""


class Told(NamedTuple):
    """What the past tells beyond observation and action. ``part``: how much, as a fraction;
    ``text``: a sentence; ``steps_back``: how many steps lie between, 0 if that is not known."""

    part: float
    text: str
    steps_back: int = 0


class Past:
    """The steps of one agent, in order, up to `MOST_STEPS`. The first one takes the memory for all,
    so that it is not taken for a leak of the environment."""

    def __init__(self) -> None:
        self._codes = np.zeros((5, 0), np.int64)
        self._numbers: Numbers = np.zeros((0, 0))
        self._is_integer: list[bool] = []
        self._size = self._place = 0
        self._seen = self._began = 0
        self._now: Numbers | None = None

    def begin(self, observation: Iterable[Any]) -> int:
        """Begin an episode with its first ``observation``, its leaves. Return its checksum."""
        self._place = 0
        self._began = self._see([*observation])
        return self._began

    def add(self, action: Iterable[Any], result: object, observation: Iterable[Any]) -> None:
        """Add a step: the leaves of its ``action``, what came of it (``result``, the reward and the
        end), and the leaves of the next ``observation``."""
        if self._size < MOST_STEPS:
            acted, seen, i = [*action], [*observation], self._size
            if i == 0:
                self._begin(seen, acted)
            codes = self._seen, checksum(acted), self._began, hash(result), self._place
            self._codes[:, i] = codes
            if self._now is not None:
                self._numbers[i] = np.concatenate([self._now, *(leaf.ravel() for leaf in acted)])
            self._size += 1
            self._place += 1
            self._see(seen)

    def _begin(self, seen: list[Any], acted: list[Any]) -> None:
        self._codes = np.full((5, MOST_STEPS), -1, np.int64)
        self._is_integer = [leaf.dtype.kind != "f" for leaf in seen + acted for _ in leaf.flat]
        if self._now is not None:
            self._numbers = np.full((MOST_STEPS, len(self._is_integer)), np.nan)

    def _see(self, leaves: list[Any]) -> int:
        self._seen = checksum(leaves)
        if sum(leaf.size for leaf in leaves) <= MOST_NUMBERS:
            self._now = np.concatenate([leaf.ravel() for leaf in leaves], dtype=np.float64)
        return self._seen

    def told_of_results(self) -> Told | None:
        """Return what the past tells of rewards and ends; None if nothing, or if too few steps
        repeat to know."""
        seen, acted, began, results, place = self._codes[:, : self._size]
        count, share = _differing(_mixed(seen, acted), results)
        if count * share < MANY:
            return None
        most, found = 0.0, None
        for what, steps_back, keys, of_keys in _with_past(seen, acted, began, results, place):
            count, other = _differing(keys, of_keys)
            sure = share - SURE * float(np.sqrt(share * (1.0 - share) / max(1, count)))
            told = count * (share - other)
            if count >= MANY and other <= min(share / 2, sure) and told > most:
                text = (
                    f"{share:.2g} of the steps with the same observation and action had another "
                    f"reward or end, and {other:.2g} if {what} was the same, too"
                )
                most, found = told, Told(share - other, text, steps_back)
        return found

    def told_of_changes(self) -> Told | None:
        """Return what the past tells of the changes of the observation; None if nothing, or if
        there are too many numbers or too few steps to know."""
        place, observed = self._codes[4, : self._size], 0 if self._now is None else len(self._now)
        follow = place[1:-1] >= 1
        follow &= place[2:] > place[1:-1]
        at = np.flatnonzero(follow)[:MOST_CHANGES] + 1
        numbers = self._numbers[: self._size]
        if len(at) < LEAST_CHANGES or not observed or not np.isfinite(numbers).all():
            return None
        moving = [i for i in range(observed) if not self._is_integer[i]]
        moving = [i for i in moving if np.var(numbers[at + 1, i] - numbers[at, i]) > 0.0]
        features = _one_hot(numbers, self._is_integer)
        terms = _with_products(features[at]) if features.shape[1] <= MOST_NUMBERS else None
        if not moving or terms is None or len(at) < 2 * PER_TERM * terms.shape[1]:
            return None
        changes = (numbers[at + 1] - numbers[at])[:, moving]
        without = np.maximum(_foretold(features[at], changes), _foretold(terms, changes))
        past = _foretold(np.hstack([features[at], features[at - 1]]), changes)
        hidden = (without <= HARDLY) & (past >= WELL)
        if 2 * hidden.sum() < len(moving):
            return None
        return Told(
            float(past[hidden].mean() - without[hidden].mean()),
            f"the changes of {hidden.sum()} of the {len(moving)} numbers of the observation are "
            f"foretold by the step before ({past[hidden].min():.0%} of their variance), and hardly "
            f"without it ({without[hidden].max():.0%}): something like a speed is not shown",
        )


def checksum(leaves: Iterable[Any]) -> int:
    return hash(tuple(zlib.crc32(leaf.tobytes()) for leaf in leaves))


def _with_past(
    seen: Codes, acted: Codes, began: Codes, results: Codes, place: Codes
) -> Iterator[tuple[str, int, Codes, Codes]]:
    """Yield parts of the past, in words and by how many steps they are back (0: it varies), with a
    key of each step that has one, which is equal if observation, action and this part are, and the
    results of these steps."""
    step = _mixed(seen, acted)
    yield "the first observation of the episode", 0, _mixed(step, began), results
    known = place[1:] >= 1
    yield "the step before", 1, _mixed(step[1:], step[:-1])[known], results[1:][known]
    for back in range(1, FARTHEST + 1):
        known = place[back:] >= back
        keys = _mixed(step[back:], seen[:-back])[known]
        what = f"the observation {back} step{'s' * (back > 1)} before"
        yield what, back, keys, results[back:][known]


def _mixed(one: Codes, other: Codes) -> Codes:
    """Return a code of each pair of codes."""
    return (one * 1_000_003) ^ other


def _differing(keys: Codes, results: Codes) -> tuple[int, float]:
    """Return how many steps had the same key as an earlier one, and the fraction of them whose
    result was another one than the last time."""
    order = np.argsort(keys, kind="stable")
    keys, results = keys[order], results[order]
    same = keys[1:] == keys[:-1]
    count = int(same.sum())
    return count, float((same & (results[1:] != results[:-1])).sum() / max(1, count))


def _one_hot(numbers: Numbers, is_integer: list[bool]) -> Numbers:
    """Return ``numbers`` [steps, N] with integers of few values as one column per value."""
    columns = []
    for column, integer in zip(numbers.T, is_integer, strict=True):
        values = np.unique(column) if integer else column
        few = integer and len(values) <= FEW_VALUES
        columns += [column == value for value in values] if few else [column]
    return np.stack(columns, axis=1).astype(np.float64)


def _with_products(features: Numbers) -> Numbers:
    one, other = np.triu_indices(features.shape[1])
    return np.hstack([features, features[:, one] * features[:, other]])


def _foretold(features: Numbers, changes: Numbers) -> Numbers:
    """Return the fraction of the variance of each column of ``changes`` [steps, N] in the second
    half that the linear function fitted to the first half foretells."""
    half = len(features) // 2
    spread = features[:half].std(axis=0)
    features = (features - features[:half].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    features = np.hstack([features, np.ones((len(features), 1))])
    squares = features[:half].T @ features[:half] + 1e-6 * half * np.eye(features.shape[1])
    weights = np.linalg.solve(squares, features[:half].T @ changes[:half])
    errors = changes[half:] - features[half:] @ weights
    missed: Numbers = np.square(errors).mean(axis=0)
    variance: Numbers = changes[half:].var(axis=0)
    return 1.0 - missed / np.maximum(variance, 1e-30)

"""The bounds of observations: which value is outside of what its space declares.

The probe and `sampleforge check-env` test every observation, actors a rollout now and then: a
comparison per env step would cost more than a fast environment's step. A number beyond the bounds
of its Box is warned of, since all that follows works with it; a category that a space does not have
is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.spec import ACTION_MASK, OBSERVATION, leaves

if TYPE_CHECKING:
    from sampleforge.env.vector import EnvVector

Array = np.ndarray[Any, Any]

SLACK = 1e-4
"""Distance by which floats may be outside their bounds, relative to the bound, because of rounding.
Integers, which have none, may not be."""
PART = 1 << 16
"""Elements of an observation that are compared with their bounds at once: they fit into a cache."""


class LeafBounds(NamedTuple):
    """The bounds of one observation leaf of one row, as the slots hold it: flat arrays of its
    elements. ``start`` is what the environment's own values have added to them; ``categories``:
    whether they are of a categorical space."""

    low: Array
    high: Array
    start: Any = 0
    categories: bool = True


class Outside(NamedTuple):
    """A value that is outside of its bounds: ``text`` has the environment, row, leaf, bounds, value
    and remedy. ``category``: whether the space is categorical, so that nothing can be learned of
    the value."""

    text: str
    category: bool


class Bounds:
    """The bounds of the observations of ``vector``, by leaf; leaves that cannot leave theirs are
    left out."""

    def __init__(self, vector: EnvVector) -> None:
        self._env_id = vector.spec.env_id + (f", agent {vector.agent}" if vector.agent else "")
        self._leaves = bounds_of(vector.observation_space)

    def fault(self, obs: Mapping[str, Array]) -> Outside | None:
        """Return the first value of ``obs``, leaf -> [rows, ...], that is outside of its bounds;
        None if there is none. Leaves that ``obs`` lacks are not checked."""
        for name, bounds in self._leaves.items():
            for row in range(len(obs[name]) if name in obs else 0):
                at = _outside(obs[name][row], bounds)
                if at is not None:
                    text = self._text(name, bounds, row, at, obs[name][row])
                    return Outside(text, bounds.categories)
        return None

    def fault_of_rollout(self, obs: Mapping[str, Array]) -> Outside | None:
        """As `fault`, for ``obs`` of a whole rollout, leaf -> [T + 1, rows, ...]."""
        for name, bounds in self._leaves.items():
            for rows in obs.get(name, ()):
                flat = rows.reshape(len(rows), -1)
                if ((flat < bounds.low) | (flat > bounds.high)).any():
                    found = self.fault({name: rows})
                    if found is not None:
                        return found
        return None

    def cut(self, obs: Mapping[str, Array]) -> None:
        """Set the numbers of ``obs``, leaf -> [rows, ...], that are outside of the bounds of their
        Box to the nearest bound."""
        cut(obs, self._leaves)

    def _text(
        self, name: str, bounds: LeafBounds, row: int, at: tuple[int, ...], value: Array
    ) -> str:
        element = int(np.ravel_multi_index(at, value.shape)) if at else 0
        start = np.broadcast_to(np.asarray(bounds.start), value.shape)[at]
        low, high, given = (
            each + start for each in (bounds.low[element], bounds.high[element], value[at])
        )
        return (
            f"{self._env_id}, row {row}: observation leaf {name!r} must be in [{_digits(low)}, "
            f"{_digits(high)}] at {list(at)}, as its observation_space says, but is "
            f"{_digits(given)}; correct the space or what the environment returns"
            + ("" if bounds.categories else ", or cut such numbers off with --clip-observations")
        )


def bounds_of(space: gym.Space[Any]) -> dict[str, LeafBounds]:
    """Return the bounds of the leaves of an observation space, by name, without the action mask and
    the leaves that cannot leave theirs."""
    return {
        name: bounds
        for name, leaf in leaves(space, OBSERVATION)
        if name != ACTION_MASK and (bounds := _bounds(leaf)) is not None
    }


def cut(obs: Mapping[str, Array], leaf_bounds: Mapping[str, LeafBounds]) -> None:
    """Set the numbers of ``obs``, leaf -> [rows, ...], that are outside of the bounds of their Box
    to the nearest bound."""
    for name, bounds in leaf_bounds.items():
        if name in obs and not bounds.categories:
            leaf = obs[name]
            low, high = (each.reshape(leaf.shape[1:]) for each in (bounds.low, bounds.high))
            np.clip(leaf, low, high, out=leaf)


def _bounds(space: gym.Space[Any]) -> LeafBounds | None:
    """Return the bounds of a leaf; None if no value of its dtype is outside of them."""
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        return LeafBounds(low, high, categories=False) if _any(space) else None
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return LeafBounds(np.zeros(size, np.int8), np.ones(size, np.int8))
    if isinstance(space, spaces.Discrete):
        return LeafBounds(np.zeros(1, np.int64), np.full(1, space.n - 1, np.int64), space.start)
    if isinstance(space, spaces.MultiDiscrete):
        high = space.nvec.reshape(-1).astype(np.int64) - 1
        return LeafBounds(np.zeros(high.size, np.int64), high, space.start)
    return None


def _digits(number: Any) -> str:
    """Return a number in digits; all digits of an integer, so that neighbours are told apart."""
    return str(int(number)) if np.asarray(number).dtype.kind in "iu" else f"{number:g}"


def _any(space: spaces.Box) -> bool:
    """Return whether a value of the space's dtype can be outside of its bounds."""
    if space.dtype is not None and space.dtype.kind in "iu":
        limits = np.iinfo(str(space.dtype))
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())


def _outside(value: Array, bounds: LeafBounds) -> tuple[int, ...] | None:
    """Return the index of the first element of ``value`` that is outside of the bounds, of floats
    by more than `SLACK`, or None. It works on parts, because observations of hundreds of MB are
    slow as float64."""
    flat, lows, highs = np.asarray(value).reshape(-1), bounds.low, bounds.high
    for begin in range(0, flat.size, PART):
        part = slice(begin, begin + PART)
        low, high = lows[part], highs[part]
        if (flat[part] >= low).all() and (flat[part] <= high).all():
            continue
        if low.dtype.kind == "f":
            low, high = low.astype(np.float64), high.astype(np.float64)
            low, high = low - SLACK * (1 + np.abs(low)), high + SLACK * (1 + np.abs(high))
        outside = (flat[part] < low) | (flat[part] > high)
        if outside.any():
            first = begin + int(np.argmax(outside))
            at = np.unravel_index(first, value.shape) if value.shape else ()
            return tuple(int(i) for i in at)
    return None

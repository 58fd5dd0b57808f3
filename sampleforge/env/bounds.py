"""The bounds of observations: which value is outside of what its space declares.

The probe and `sampleforge check-env` test every observation, actors a rollout now and then: a
comparison per env step would cost more than a fast environment's step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.vector import Array, EnvVector
from sampleforge.spec import ACTION_MASK, OBSERVATION, leaves

SLACK = 1e-4
"""Distance by which observations may be outside their bounds, relative to the bound, because of
rounding."""
PART = 1 << 16
"""Elements of an observation that are compared with their bounds at once: they fit into a cache."""


class LeafBounds(NamedTuple):
    """The bounds of one observation leaf of one row, as the slots hold it: flat arrays of its
    elements. ``start`` is what the environment's own values have added to them."""

    low: Array
    high: Array
    start: Any


class Bounds:
    """The bounds of the observations of ``vector``, by leaf; leaves that cannot leave theirs are
    left out."""

    def __init__(self, vector: EnvVector) -> None:
        self._env_id = vector.spec.env_id + (f", agent {vector.agent}" if vector.agent else "")
        self._leaves = {
            name: bounds
            for name, space in leaves(vector.observation_space, OBSERVATION)
            if name != ACTION_MASK and (bounds := _bounds(space)) is not None
        }

    def fault(self, obs: Mapping[str, Array]) -> str | None:
        """Return the first value of ``obs``, leaf -> [rows, ...], that is outside of its bounds, in
        words with environment, row and remedy; None if there is none. Leaves that ``obs`` lacks are
        not checked."""
        for name, bounds in self._leaves.items():
            for row in range(len(obs[name]) if name in obs else 0):
                at = _outside(obs[name][row], bounds)
                if at is not None:
                    return self._text(name, bounds, row, at, obs[name][row])
        return None

    def fault_of_rollout(self, obs: Mapping[str, Array]) -> str | None:
        """As `fault`, for ``obs`` of a whole rollout, leaf -> [T + 1, rows, ...]."""
        for name, (low, high, _) in self._leaves.items():
            for rows in obs.get(name, ()):
                flat = rows.reshape(len(rows), -1)
                if ((flat < low) | (flat > high)).any():
                    text = self.fault({name: rows})
                    if text is not None:
                        return text
        return None

    def _text(
        self, name: str, bounds: LeafBounds, row: int, at: tuple[int, ...], value: Array
    ) -> str:
        element = int(np.ravel_multi_index(at, value.shape)) if at else 0
        start = np.broadcast_to(np.asarray(bounds.start), value.shape)[at]
        low, high, given = (
            each + start for each in (bounds.low[element], bounds.high[element], value[at])
        )
        return (
            f"{self._env_id}, row {row}: observation leaf {name!r} must be in [{low:g}, {high:g}] "
            f"at {list(at)}, as its observation_space says, but is {given:g}; correct the space"
        )


def _bounds(space: gym.Space[Any]) -> LeafBounds | None:
    """Return the bounds of a leaf; None if no value of its dtype is outside of them."""
    if isinstance(space, spaces.Box):
        return LeafBounds(space.low.reshape(-1), space.high.reshape(-1), 0) if _any(space) else None
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return LeafBounds(np.zeros(size, np.int8), np.ones(size, np.int8), 0)
    if isinstance(space, spaces.Discrete):
        return LeafBounds(np.zeros(1, np.int64), np.full(1, space.n - 1, np.int64), space.start)
    if isinstance(space, spaces.MultiDiscrete):
        high = space.nvec.reshape(-1).astype(np.int64) - 1
        return LeafBounds(np.zeros(high.size, np.int64), high, space.start)
    return None


def _any(space: spaces.Box) -> bool:
    """Return whether a value of the space's dtype can be outside of its bounds."""
    if space.dtype is not None and space.dtype.kind in "iu":
        limits = np.iinfo(str(space.dtype))
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())


def _outside(value: Array, bounds: LeafBounds) -> tuple[int, ...] | None:
    """Return the index of the first element of ``value`` that is outside of the bounds by more than
    `SLACK`, or None. It works on parts, because observations of hundreds of MB are slow as
    float64."""
    flat, (lows, highs, _) = np.asarray(value).reshape(-1), bounds
    for begin in range(0, flat.size, PART):
        part = slice(begin, begin + PART)
        if (flat[part] >= lows[part]).all() and (flat[part] <= highs[part]).all():
            continue
        low, high = lows[part].astype(np.float64), highs[part].astype(np.float64)
        below = flat[part] < low - SLACK * (1 + np.abs(low))
        above = flat[part] > high + SLACK * (1 + np.abs(high))
        if (below | above).any():
            first = begin + int(np.argmax(below | above))
            at = np.unravel_index(first, value.shape) if value.shape else ()
            return tuple(int(i) for i in at)
    return None

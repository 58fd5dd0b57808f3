"""Rows of an environment that play with random actions, for the probe and `sampleforge
check-env`."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import numpy as np

from sampleforge.env.bounds import Bounds, Outside
from sampleforge.env.config import EnvConfig
from sampleforge.env.place import row_seeds
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import Episode, own_outputs
from sampleforge.spec import ACTION_MASK, ActionSpec, EnvSpec


class RandomPlay:
    """``rows`` rows of ``config.env``, which the constructor creates. ``seats``: the env vector of
    each agent, with the arrays that its steps are written into; a single-agent environment has one.
    ``episodes``: those that ended with the last step; ``actions``: its actions, one dict per seat.
    Two objects with the same arguments take the same actions, as long as their action masks are the
    same."""

    def __init__(self, config: EnvConfig, rows: int, seed: int = 0) -> None:
        self.vector = make_vector(config, rows, row_seeds(seed, 0, 0, rows))
        self.seats = [(seat, own_outputs(seat.spec, rows)) for seat in self.vector.seats]
        for seat, _ in self.seats:
            seat.guard.bounds_far = False
        self.episodes: list[Episode] = []
        self.actions: list[dict[str, Array]] = []
        self._bounds = [Bounds(seat) for seat in self.vector.seats]
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        """Write the first observations. Call it once, before the first step."""
        for seat, out in self.seats:
            seat.reset(out.obs)

    def step(self) -> tuple[float, float]:
        """Take a step of all rows. Return the seconds that it took, and the processor seconds that
        this process used meanwhile; both without the drawing of the actions."""
        rows = self.vector.num_rows
        self.actions = [
            random_actions(seat.spec, rows, self._rng, out.obs.get(ACTION_MASK))
            for seat, out in self.seats
        ]
        used, began = process_time(), perf_counter()
        for (seat, _), actions in zip(self.seats, self.actions, strict=True):
            seat.send(actions)
        self.episodes = [episode for seat, out in self.seats for episode in seat.recv(out)]
        return perf_counter() - began, process_time() - used

    def not_finite(self) -> str | None:
        """Return the first value so far that was not finite, in words, or None."""
        events = (seat.guard.first for seat, _ in self.seats)
        return next(filter(None, events), None)

    def out_of_bounds(self) -> Outside | None:
        """Return the first value of the newest observations that is outside of its bounds, or
        None."""
        for (_, out), bounds in zip(self.seats, self._bounds, strict=True):
            fault = bounds.fault(out.obs)
            if fault is not None:
                return fault
        return None

    def converted(self) -> list[str]:
        """Return what there is to say of observations that are converted to their space's type."""
        return [text for seat, _ in self.seats for text in seat.converted.values()]

    @property
    def valid_rows(self) -> int:
        """Number of env steps of the last step, counted once for each agent."""
        return sum(seat.valid_rows for seat, _ in self.seats)

    def close(self) -> None:
        self.vector.close()


Array = np.ndarray[Any, Any]


def random_actions(
    spec: EnvSpec, rows: int, rng: np.random.Generator, masks: Array | None = None
) -> dict[str, Array]:
    """Return uniformly random actions, leaf -> [rows, ...] as in the slots; boxes within their
    bounds, or in +-1 without bounds. ``masks``: bool [rows, sum of categories], True where a
    category is allowed."""
    at, actions = 0, {}
    for name, leaf in spec.actions.items():
        if leaf.kind == "box":
            actions[name] = _random_box(leaf, rows, rng)
            continue
        columns = []
        for n in leaf.categories:
            if masks is None:
                columns.append(rng.integers(n, size=rows))
                continue
            columns.append(np.argmax(rng.random((rows, n)) * masks[:, at : at + n], axis=1))
            at += n
        actions[name] = np.stack(columns, axis=1).reshape(rows, *leaf.shape).astype(leaf.dtype)
    return actions


def _random_box(leaf: ActionSpec, rows: int, rng: np.random.Generator) -> Array:
    low = np.nan_to_num(np.array(leaf.low), neginf=-1.0)
    high = np.nan_to_num(np.array(leaf.high), posinf=1.0)
    values = rng.uniform(low, np.maximum(low, high), (rows, len(leaf.low)))
    return values.reshape(rows, *leaf.shape).astype(leaf.dtype)

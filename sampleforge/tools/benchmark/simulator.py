"""The worker that steps the env vectors of an actor with random actions, without policy and slots.

Its rate is the upper limit of every sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.env.random_actions import random_actions
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.shared.counters import Counters
from sampleforge.spec import ACTION_MASK, EnvSpec
from sampleforge.workers.worker import IDLE_WAIT, EventDriven

Array = npt.NDArray[Any]
LOOK = 0.0005
"""Seconds between two checks whether an env vector is ready."""
DRAWN_STEPS = 64
"""Number of steps for which random actions are drawn in advance; they are used in turn."""


class SimulatorWorker(EventDriven):
    """Steps env vectors in turn, as an actor does. An asynchronous env vector steps while the
    worker serves the others; the worker skips it until it is ready."""

    def __init__(
        self,
        name: str,
        make_envs: Sequence[Callable[[], EnvVector]],
        counters: Counters,
        counter_row: int,
    ) -> None:
        self.name = name
        self._make_envs = make_envs
        self._counters = counters
        self._counter_row = counter_row

    def start(self) -> None:
        self._count = self._counters.row(self._counter_row)
        self._envs = [make() for make in self._make_envs]
        self._seats = [
            [
                Seat(seat, np.random.default_rng([self._counter_row, i, *([n] if n else [])]))
                for n, seat in enumerate(env.seats)
            ]
            for i, env in enumerate(self._envs)
        ]
        self._stepping = [False] * len(self._envs)
        for seats in self._seats:
            for seat in seats:
                seat.env.reset(seat.out.obs)

    def step(self) -> bool:
        self._count["heartbeat"][0] = monotonic()
        started = perf_counter()
        moved = [self._advance(split, env) for split, env in enumerate(self._envs)]
        self._count["env_s"] += perf_counter() - started
        return any(moved)

    def _advance(self, split: int, env: EnvVector) -> bool:
        """Complete the step in progress, if there is one, and begin the next. Return False if the
        env vector is not ready."""
        if self._stepping[split] and not env.ready:
            return False
        if self._stepping[split]:
            self._collect(split)
        for seat in self._seats[split]:
            seat.env.send(seat.actions(seat.out.obs))
        self._stepping[split] = env.spec.asynchronous
        if not env.spec.asynchronous:
            self._collect(split)
        return True

    def _collect(self, split: int) -> None:
        for seat in self._seats[split]:
            seat.env.recv(seat.out)
            self._count["env_steps"] += seat.env.valid_rows
            self._count["env_frames"] += seat.env.frames

    def wait(self, timeout: float = IDLE_WAIT) -> None:
        """Sleep for a moment, because all env vectors are busy."""
        sleep(min(timeout, LOOK))

    def close(self) -> None:
        for env in self._envs:
            env.close()


class Seat:
    """One agent of a split: its env vector, the arrays of its steps, its random actions."""

    def __init__(self, env: EnvVector, rng: np.random.Generator) -> None:
        self.env = env
        self.out = own_outputs(env.spec, env.num_rows)
        self.actions = RandomActions(env.spec, env.num_rows, rng)


class RandomActions:
    """Random actions for ``rows`` env rows, in the form of the slots. Without action masks they are
    drawn in advance; with masks, allowed actions are drawn at every step."""

    def __init__(self, spec: EnvSpec, rows: int, rng: np.random.Generator) -> None:
        self._spec = spec
        self._rows = rows
        self._rng = rng
        self._turn = 0
        self._drawn: list[dict[str, Array]] = []
        if ACTION_MASK not in spec.observations:
            self._drawn = [random_actions(spec, rows, rng) for _ in range(DRAWN_STEPS)]

    def __call__(self, obs: Mapping[str, Array]) -> dict[str, Array]:
        """Return actions, leaf -> [rows, ...], for observation leaves [rows, ...]."""
        if not self._drawn:
            return random_actions(self._spec, self._rows, self._rng, obs[ACTION_MASK])
        self._turn = (self._turn + 1) % len(self._drawn)
        return self._drawn[self._turn]

"""The simulator alone: an actor's env vectors with random actions, no policy and no slots.

In the place of the actors it measures what no sampler can exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.env.vector import EnvVector, StepOut, own_outputs
from sampleforge.shared.counters import Counters
from sampleforge.spec import ACTION_MASK, ActionSpec, EnvSpec
from sampleforge.workers.worker import IDLE_WAIT, EventDriven

Array = npt.NDArray[Any]
LOOK = 0.0005
"""Seconds between two looks for an env vector that is ready."""
DRAWN = 64
"""Random actions are drawn beforehand, for so many steps, and used again and again."""


class SimulatorWorker(EventDriven):
    """Steps env vectors in turn, as an actor does: an asynchronous one works on while the others
    are served, and is passed over where it says that it is not ready."""

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
        self._outs = [own_outputs(env.spec, env.num_rows) for env in self._envs]
        self._actions = [
            RandomActions(env.spec, env.num_rows, np.random.default_rng([self._counter_row, i]))
            for i, env in enumerate(self._envs)
        ]
        self._stepping = [False] * len(self._envs)
        for env, out in zip(self._envs, self._outs, strict=True):
            env.reset(out.obs)

    def step(self) -> bool:
        self._count["heartbeat"][0] = monotonic()
        started = perf_counter()
        moved = [self._advance(split, env) for split, env in enumerate(self._envs)]
        self._count["env_s"] += perf_counter() - started
        return any(moved)

    def _advance(self, split: int, env: EnvVector) -> bool:
        """Collect the step that is under way, if any, and begin the next one."""
        if self._stepping[split] and not env.ready:
            return False
        out = self._outs[split]
        if self._stepping[split]:
            self._collect(env, out)
        env.send(self._actions[split](out.obs))
        self._stepping[split] = env.spec.asynchronous
        if not env.spec.asynchronous:
            self._collect(env, out)
        return True

    def _collect(self, env: EnvVector, out: StepOut) -> None:
        env.recv(out)
        self._count["env_steps"] += env.valid_rows
        self._count["env_frames"] += env.frames

    def wait(self, timeout: float = IDLE_WAIT) -> None:
        """Until one of the env vectors, which are all busy, may be ready."""
        sleep(min(timeout, LOOK))

    def close(self) -> None:
        for env in self._envs:
            env.close()


class RandomActions:
    """Uniform actions for ``rows`` rows (a box without bounds: normal ones), as slots hold them.

    Where the environment gives masks they are obeyed, and drawn anew at every step.
    """

    def __init__(self, spec: EnvSpec, rows: int, rng: np.random.Generator) -> None:
        self._specs = spec.actions
        self._rng = rng
        self._turn = 0
        self._masked = ACTION_MASK in spec.observations
        self._drawn = [
            {name: _draw(leaf, rows, rng) for name, leaf in spec.actions.items()}
            for _ in range(1 if self._masked else DRAWN)
        ]

    def __call__(self, obs: Mapping[str, Array]) -> dict[str, Array]:
        """Actions leaf -> [rows, ...] for obs leaves [rows, ...]."""
        self._turn = (self._turn + 1) % len(self._drawn)
        actions = self._drawn[self._turn]
        return actions | self._allowed(obs[ACTION_MASK]) if self._masked else actions

    def _allowed(self, mask: Array) -> dict[str, Array]:
        """One allowed value per choice: the largest of random keys, forbidden ones being zero."""
        keys = (1.0 + self._rng.random(mask.shape)) * mask
        found: dict[str, Array] = {}
        start = 0
        for name, leaf in self._specs.items():
            chosen = []
            for count in leaf.categories:
                chosen.append(keys[:, start : start + count].argmax(axis=1))
                start += count
            if chosen:
                values = np.stack(chosen, axis=1).reshape(len(mask), *leaf.shape)
                found[name] = values.astype(leaf.dtype)
        return found


def _draw(leaf: ActionSpec, rows: int, rng: np.random.Generator) -> Array:
    """Random actions [rows, ...] of one leaf."""
    if leaf.kind == "box":
        low, high = np.array(leaf.low), np.array(leaf.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(
            np.where(bounded, low, 0), np.where(bounded, high, 1), (rows, len(low))
        )
        values = np.where(bounded, uniform, rng.normal(size=uniform.shape))
    else:
        values = rng.integers(0, leaf.categories, (rows, len(leaf.categories)))
    return values.reshape(rows, *leaf.shape).astype(leaf.dtype)

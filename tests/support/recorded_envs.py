"""Environments that keep what passed through them, in the process in which they were stepped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.support.envs import AimEnv, MaskedEnv, MemoryTMaze, MixedActionEnv

Info = dict[str, Any]


class Step(NamedTuple):
    """What the environment had given, and the action that it was given for it."""

    obs: Any
    info: Info
    action: Any


STEPS: list[Step] = []
"""Of all environments of this process since it was last cleared."""


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Notes every step in `STEPS`. Refuses an action outside of the space."""

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        self.given = copy.deepcopy(self.env.reset(**kwargs))
        return copy.deepcopy(self.given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        assert self.action_space.contains(action), (self.action_space, action)
        STEPS.append(Step(*self.given, copy.deepcopy(action)))
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.given = copy.deepcopy((obs, info))
        return obs, reward, terminated, truncated, info


class SpaceEnv(gym.Env[Any, Any]):
    """Random observations, float64 [4], for 12 steps; any action of ``action_space`` will do."""

    observation_space = spaces.Box(-5.0, 5.0, (4,), np.float64)

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-5, 5, 4), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.steps += 1
        return self.np_random.uniform(-5, 5, 4), 1.0, False, self.steps == 12, {}


TAXI = max(name for name in gym.registry if name.startswith("Taxi-v"))
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete from 5": spaces.Discrete(4, start=5),
    "multidiscrete from 3 and -1": spaces.MultiDiscrete([2, 4], dtype=np.int32, start=[3, -1]),
    "multibinary": spaces.MultiBinary((2, 2)),
    "box of one number": spaces.Box(2.0, 3.0, (), np.float64),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(0.0, 9.0, (2,), np.float32))),
}


def make(name: str) -> gym.Env[Any, Any]:
    """Return an environment with an action space of `ACTIONS`, or one of those below, recorded."""
    if name in ACTIONS:
        return Recorder(SpaceEnv(ACTIONS[name]))
    made: dict[str, Callable[[], gym.Env[Any, Any]]] = {
        "taxi": lambda: gym.make(TAXI, disable_env_checker=True),
        "blackjack": lambda: gym.make("Blackjack-v1", disable_env_checker=True),
        "dict": lambda: MixedActionEnv(),
        "box of .01": lambda: AimEnv(-0.01, 0.01),
        "mask in obs": lambda: MaskedEnv(where="obs"),
        "memory": lambda: MemoryTMaze(),
    }
    return Recorder(made[name]())

"""An environment may write to the actions that it is given: the slots keep those of the policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.spec import leaves
from tests.support.env_vectors import buffers

SPACES: dict[str, spaces.Space[Any]] = {
    "bits": spaces.MultiBinary(3),
    "choices": spaces.MultiDiscrete([3, 3]),
    "box": spaces.Box(-np.inf, np.inf, (2,)),
    "nested": spaces.Dict(one=spaces.Discrete(3), bits=spaces.MultiBinary(3)),
}


class Writes(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for leaf in action.values() if isinstance(action, dict) else [action]:
            if isinstance(leaf, np.ndarray):
                leaf[...] = 0
        return np.zeros(2, np.float32), 1.0, False, False, {}


class WritesAll(SyncVectorEnv):
    """It maps the actions of all rows in place, as many a simulator in numpy does."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([lambda: gym.make("Acrobot-v1")] * num_envs)

    def step(self, actions: Any) -> Any:
        actions -= 1
        return super().step(actions + 1)


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [(f"{__name__}:Writes", {"kind": kind}) for kind in SPACES] + [(f"{__name__}:WritesAll", {})],
)
def test_actions_that_an_environment_writes_to_are_not_those_of_the_slots(
    env: str, kwargs: dict[str, Any]
) -> None:
    vector = make_vector(EnvConfig(env=env, env_kwargs=kwargs, decorrelate=False), 2, [0, 1])
    out = buffers(vector.spec, 2)
    vector.reset(out.obs)
    stored = {name: np.ones((2, *a.shape), a.dtype) for name, a in vector.spec.actions.items()}
    vector.send(stored)
    vector.recv(out)
    vector.close()
    assert {name: each.min() for name, each in stored.items()} == dict.fromkeys(stored, 1)
    assert set(stored) == {name for name, _ in leaves(vector.action_space, "action")}

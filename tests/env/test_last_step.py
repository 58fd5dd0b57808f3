"""`LastActionAndReward`: the policy sees the action and the reward of the step before, and zeros at
the start of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.last_step import LastActionAndReward
from tests.support.graphs import spec_of

ACTIONS = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "keys": spaces.MultiDiscrete([2, 4]),
        "wheel": spaces.Box(1, 2, (2,), np.float32),
        "lights": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(2))),
    }
)


class Countdown(gym.Env[Any, Any]):
    """Episodes of three steps whose rewards are 1, 2 and 3."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 3, (1,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), self.steps == 3, False, {}


class Seen(Countdown):
    observation_space = spaces.Dict({"last_reward": spaces.Box(0, 3, (1,), np.float32)})


def test_each_kind_of_action_is_seen_one_step_later() -> None:
    env = LastActionAndReward(Countdown(ACTIONS))
    for _ in range(2):
        observation, _ = env.reset()
        assert env.observation_space.contains(observation)
        assert observation["last_reward"] == [0]
        last = observation["last_action"]
        assert (last["gear"], last["lights"][1]) == (0, 0)
        assert not np.any(last["keys"]) and not np.any(last["wheel"])
        for step in range(1, 4):
            action = ACTIONS.sample()
            observation, reward, *_ = env.step(action)
            assert env.observation_space.contains(observation)
            assert observation["obs"] == [step]
            assert observation["last_reward"] == [reward] == [step]
            last = observation["last_action"]
            assert last["gear"] == action["gear"] + 2  # from -1, 0, 1 to 1, 2, 3
            np.testing.assert_array_equal(last["keys"], action["keys"] + 1)
            np.testing.assert_array_equal(last["wheel"], action["wheel"])
            np.testing.assert_array_equal(last["lights"][0], action["lights"][0])
            assert last["lights"][1] == action["lights"][1] + 1


def test_an_array_that_the_caller_writes_to_again_is_not_seen() -> None:
    env = LastActionAndReward(Countdown(spaces.Box(-1, 1, (1,), np.float32)))
    env.reset()
    action = np.ones(1, np.float32)
    observation = env.step(action)[0]
    action[:] = 0
    assert observation["last_action"] == [1]


def test_leaves_that_are_there_already_are_refused() -> None:
    with pytest.raises(ConfigError, match="last_reward already; leave the wrapper out"):
        LastActionAndReward(Seen(spaces.Discrete(2)))


def test_a_run_names_it_among_its_wrappers() -> None:
    pytest.importorskip("minigrid")
    wrappers = ["sampleforge.env.last_step:LastActionAndReward"]
    kwargs = {"id": "MiniGrid-MemoryS7-v0", "wrappers": wrappers}
    leaves = spec_of(EnvConfig(env="sampleforge.env.wrapped:make", env_kwargs=kwargs)).observations
    assert set(leaves) == {"direction", "image", "last_action", "last_reward"}
    assert leaves["last_action"].categories == (8,)  # seven actions, and none
    assert leaves["last_reward"].shape == (1,)

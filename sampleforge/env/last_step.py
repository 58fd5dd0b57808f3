"""A wrapper for environments whose state the observation does not tell: the policy sees what it did
last, and what it was given for it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.step_values import reward_of
from sampleforge.spec import OBSERVATION

LEAVES = ("last_action", "last_reward")


class LastActionAndReward(gym.Wrapper[dict[str, Any], Any, Any, Any]):
    """Adds the last action and its reward to the observations, as inputs of a recurrent core: those
    of R2D2 (Kapturowski et al. 2019, section 2.3).

    Observations become a Dict, or stay one, with two further leaves:

    * ``last_action``: a category is its number from 1 on, and 0 at the start of an episode; numbers
      and bits are as they were, and 0 at the start;
    * ``last_reward``: float32 [1], the environment's own reward, and 0 at the start; with
      ``--action-repeat`` that of the last of the repeated steps, not their sum.

    An observation that is no Dict becomes the leaf ``obs``.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Raises ConfigError if an observation has a leaf of one of the two names."""
        super().__init__(env)
        seen = env.observation_space
        self._is_dict = isinstance(seen, spaces.Dict)
        parts = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {OBSERVATION: seen}
        if taken := [name for name in LEAVES if name in parts]:
            raise ConfigError(
                f"LastActionAndReward: {env} has observations with {' and '.join(taken)} already; "
                "leave the wrapper out"
            )
        reward = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        added = dict(zip(LEAVES, (_with_none(env.action_space), reward), strict=True))
        self.observation_space = spaces.Dict({**parts, **added})

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._joined(observation, _none(self.env.action_space), 0.0), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        last = _taken(self.env.action_space, action)
        number = reward_of(reward, str(self.env))
        return self._joined(observation, last, number), reward, terminated, truncated, info

    def _joined(self, observation: Any, action: Any, reward: float) -> dict[str, Any]:
        parts = observation if self._is_dict else {OBSERVATION: observation}
        last = (action, np.array([reward], np.float32))
        return {**parts, **dict(zip(LEAVES, last, strict=True))}


def _with_none(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of `_taken` and `_none`."""
    match space:
        case spaces.Discrete():
            return spaces.Discrete(int(space.n) + 1)
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec + 1)
        case spaces.Box():
            low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
            return spaces.Box(low, high, space.shape, space.dtype.type)
        case spaces.Dict():
            return spaces.Dict({name: _with_none(each) for name, each in space.items()})
        case spaces.Tuple():
            return spaces.Tuple([_with_none(each) for each in space])
    return space


def _none(space: spaces.Space[Any]) -> Any:
    """Return what stands for the action before the first one."""
    match space:
        case spaces.Discrete():
            return 0
        case spaces.Dict():
            return {name: _none(each) for name, each in space.items()}
        case spaces.Tuple():
            return tuple(_none(each) for each in space)
    return np.zeros(space.shape or (), space.dtype)


def _taken(space: spaces.Space[Any], action: Any) -> Any:
    """Return ``action`` as the leaf has it."""
    match space:
        case spaces.Discrete():
            return int(action) - int(space.start) + 1
        case spaces.MultiDiscrete():
            return np.asarray(action) - space.start + 1
        case spaces.Dict():
            return {name: _taken(each, action[name]) for name, each in space.items()}
        case spaces.Tuple():
            return tuple(_taken(each, one) for each, one in zip(space, action, strict=True))
    return np.array(action)

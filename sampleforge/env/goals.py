"""Goals, in the form of gymnasium-robotics' GoalEnv: observations are a Dict that has what was
achieved and what is desired, and the reward of a step follows from the two for any desired goal.

``compute_reward(achieved_goal, desired_goal, info)`` returns the reward of a step that achieved
``achieved_goal``, and ``compute_terminated``, if there is one, whether the step ends the episode.
They are called with a batch of goals, [N, ...], if they take one, else goal by goal; with an empty
info, because the infos of past steps are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.env_code import env_code
from sampleforge.env.interface import tell_of_row
from sampleforge.env.vector import Array
from sampleforge.runtime.causes import in_words

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""The keys of the observation, and the names of its leaves."""

_CHECKED_STEPS = 50


_ARRAYS = spaces.Box, spaces.MultiBinary
"""Spaces of goals."""


def has_goals(env: gym.Env[Any, Any]) -> bool:
    """Return whether the reward of an environment is known for any goal that it can achieve."""
    space = env.observation_space
    found = space.spaces if isinstance(space, spaces.Dict) else {}
    achieved, desired = (found.get(key) for key in (ACHIEVED, DESIRED))
    return (
        isinstance(achieved, _ARRAYS)
        and isinstance(desired, _ARRAYS)
        and achieved.shape == desired.shape
        and np.can_cast(achieved.dtype, desired.dtype, "same_kind")
        and env.has_wrapper_attr("compute_reward")
    )


class GoalRule:
    """The rewards and the ends of the episodes of ``env``, which must have goals (`has_goals`), for
    any goal. Raises ConfigError if the reward of a step is another one, or needs the info."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str) -> None:
        space: Any = env.observation_space
        self._dtypes = [space[key].dtype for key in (ACHIEVED, DESIRED)]
        self._example = [
            np.stack([space[ACHIEVED].sample() for _ in range(4)]).astype(dtype)
            for dtype in self._dtypes
        ]
        self._example[1][:2] = self._example[0][:2]  # two of the four goals are achieved
        says_ends = env.has_wrapper_attr("compute_terminated")
        with env_code:
            self._check(env, env_id)
            self._rewards = self._by_row(env.get_wrapper_attr("compute_reward"))
            ends = env.get_wrapper_attr("compute_terminated") if says_ends else _never
            self._terminated = self._by_row(ends)

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """Return the rewards of steps, float32 [...]; both arguments are [..., *goal]."""
        return self._call(self._rewards, achieved, desired).astype(np.float32)

    def terminated(self, achieved: Array, desired: Array) -> Array:
        """Return which steps end their episodes by what they achieve, bool [...]: none, if the
        environment does not say."""
        return self._call(self._terminated, achieved, desired).astype(np.bool_)

    def _call(self, function: Callable[..., Array], achieved: Array, desired: Array) -> Array:
        goal = self._example[0].shape[1:]
        shape = achieved.shape[: achieved.ndim - len(goal)]
        pair = [
            each.reshape(-1, *goal).astype(dtype)
            for each, dtype in zip((achieved, desired), self._dtypes, strict=True)
        ]
        with env_code:
            return function(*pair).reshape(shape)

    def _by_row(self, function: Callable[..., Any]) -> Callable[..., Array]:
        """Return the function of a batch of goals that is ``function`` for each of them. Whether it
        takes a batch is tried out."""

        def each(achieved: Array, desired: Array) -> Array:
            return np.array([function(*pair, {}) for pair in zip(achieved, desired, strict=True)])

        def at_once(achieved: Array, desired: Array) -> Array:
            return np.asarray(function(achieved, desired, {}))

        right = each(*self._example)
        try:
            found = at_once(*self._example)
        except Exception:
            return each
        return at_once if found.shape == right.shape and (found == right).all() else each

    def _check(self, env: gym.Env[Any, Any], env_id: str) -> None:
        """Raise ConfigError unless the rewards of some steps are those of their goals."""
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(_CHECKED_STEPS):
            tell_of_row()  # a time-out is one of a step, not of all
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            self._check_step(env, env_id, obs, float(reward))
            if terminated or truncated:
                env.reset()

    def _check_step(self, env: gym.Env[Any, Any], env_id: str, obs: Any, reward: float) -> None:
        """Raise ConfigError unless ``reward``, that of a step, is that of the goals after it."""
        try:
            found = float(env.get_wrapper_attr("compute_reward")(obs[ACHIEVED], obs[DESIRED], {}))
        except Exception as error:
            raise ConfigError(
                f"--her: compute_reward(achieved_goal, desired_goal, info) of {env_id} failed with "
                f"an empty info: {in_words(error)}; infos of past steps are not kept, so that it "
                "must do without, or leave out --her"
            ) from error
        if not np.isclose(found, reward, rtol=1e-4, atol=1e-6):
            raise ConfigError(
                f"--her: a step of {env_id} has the reward {reward:g}, but its "
                f"compute_reward says {found:g} for the goals after it; correct the environment, "
                "or the wrapper that changes its rewards (--reward-scale and --reward-clip do it "
                "for learning), or leave out --her"
            )


def _never(achieved: Array, desired: Array, info: dict[str, Any]) -> bool:
    """Return that a goal does not end the episode."""
    return False

"""Environments of the package gym, which gymnasium has taken the place of, as gymnasium's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from sampleforge.config import ConfigError


def is_old(env: Any) -> bool:
    """Return whether ``env`` is an environment of the package gym, of any version."""
    own = [(each.__module__.partition(".")[0], each.__name__) for each in type(env).__mro__]
    return ("gym", "Env") in own and ("gymnasium", "Env") not in own


def old_maker(env_id: str) -> Callable[..., Any] | None:
    """Return the function that makes ``env_id``, if it is registered in the package gym and an
    imported module uses that; otherwise None."""
    old = sys.modules.get("gym")
    if old is None:
        return None
    try:
        old.spec(env_id)
    except Exception:  # gym's own, or KeyError, by its version
        return None
    # The checker of gym 0.26 does not run with numpy 2.
    takes = "disable_env_checker" in inspect.signature(old.make).parameters
    return functools.partial(old.make, env_id, **({"disable_env_checker": True} if takes else {}))


class OldGymEnv(gym.Env[Any, Any]):
    """An environment of the package gym with gymnasium's spaces, ``reset`` and ``step``: with those
    of gym before 0.26 (an observation, and four values) and of gym 0.26 (as gymnasium's)."""

    def __init__(self, env: Any, env_id: str) -> None:
        self._env = env
        self.observation_space = space_of(env.observation_space, env_id)
        self.action_space = space_of(env.action_space, env_id)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_env"], name)  # such as reward_shaping or set_task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        given = {} if seed is None else {"seed": seed}
        try:
            result = self._env.reset(**given)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            if hasattr(self._env, "seed"):
                self._env.seed(seed)
            result = self._env.reset()
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if has_info else (result, {})

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            return result
        observation, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def space_of(space: Any, env_id: str) -> gym.Space[Any]:
    """Return a space of gym as gymnasium's; the names of its attributes are the same. Raises
    ConfigError for a kind that is not known."""
    kind = type(space).__name__
    if isinstance(space, gym.Space):
        return space
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "Dict":
        return spaces.Dict({key: space_of(each, env_id) for key, each in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([space_of(each, env_id) for each in space.spaces])
    raise ConfigError(
        f"{env_id}: the space {space} of the package gym has no counterpart in gymnasium; have the "
        "environment use gymnasium's spaces"
    )

"""Environments of a factory: a function or class, of the user's own or of another package."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_ids import Env, single_rows, without_checkers
from sampleforge.env.gymnasium_vector import GymnasiumVector, TruncatedVector
from sampleforge.env.old_gym import OldGymEnv, is_old
from sampleforge.env.parallel import ParallelRows, is_multi_agent
from sampleforge.env.place import SOMEWHERE, Place, takes
from sampleforge.env.vector import EnvVector


def factory_env(
    config: EnvConfig,
    factory: Callable[..., Any],
    render_mode: str | None = None,
    place: Place = SOMEWHERE,
) -> Env:
    """Return one environment of a factory, which has the ``place``. Raises ConfigError if it makes
    rows, or if it is to be rendered and its factory takes no ``render_mode``."""
    if takes(factory, "num_envs"):
        raise ConfigError(
            f"{config.env} makes rows (it takes num_envs), and this needs a single environment; "
            "name a factory that returns a gymnasium.Env"
        )
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    if rendering and not _can_render(factory):
        raise ConfigError(
            f"{config.env} cannot be rendered, because its factory takes no render_mode; give it "
            "that parameter, and pass it on to the environment"
        )
    arguments = {**place.arguments(factory, 0, config.env_kwargs), **rendering}
    env = _made(config, factory, **arguments)
    limit = config.max_episode_frames
    return env if limit is None or is_multi_agent(env) else TimeLimit(env, limit)


def factory_vector(
    config: EnvConfig,
    factory: Callable[..., Any],
    num_rows: int,
    seeds: Sequence[int],
    place: Place,
) -> EnvVector:
    """Return rows of a factory's environments: one VectorEnv if it takes num_envs, otherwise one
    env per row, of gymnasium or of PettingZoo."""
    kwargs = config.env_kwargs
    if not takes(factory, "num_envs"):
        made = [_made(config, factory, **place.arguments(factory, 0, kwargs))]  # tells its kind

        def make(row: int) -> Any:
            if made:
                return made.pop()
            return _made(config, factory, **place.arguments(factory, row, kwargs))

        if is_multi_agent(made[0]):
            return ParallelRows(config, make, num_rows, seeds).seats[0]
        return single_rows(
            config,
            lambda row: without_checkers(_checked(config, make(row), gym.Env)),
            num_rows,
            seeds,
        )
    if config.env_backend == "single":
        raise ConfigError(
            f"{config.env} makes rows of its own (it takes num_envs): --env-backend single does "
            "not reach them; leave it out"
        )
    kwargs = place.arguments(factory, 0, kwargs)
    env = _checked(config, factory(num_envs=num_rows, **kwargs), VectorEnv)
    kind = GymnasiumVector if config.max_episode_steps is None else TruncatedVector
    return kind(config, env, seeds)


def _made(config: EnvConfig, factory: Callable[..., Any], **arguments: Any) -> Any:
    """Return what a factory makes; an environment of the package gym as gymnasium's."""
    env = factory(**arguments)
    return OldGymEnv(env, config.env) if is_old(env) else env


def _checked(config: EnvConfig, env: Any, kind: type[Any]) -> Any:
    """Return ``env``. Raises ConfigError if it is not of the ``kind`` that its factory's arguments
    imply."""
    if isinstance(env, kind):
        return env
    is_alike = hasattr(env, "step") and hasattr(env, "reset")
    needs_gym = is_alike and "gym" not in sys.modules and not isinstance(env, gym.Env | VectorEnv)
    raise ConfigError(
        f"{config.env} returned a value of type {type(env).__name__}, but must return a gymnasium "
        f"{kind.__name__}: a factory that takes num_envs returns a VectorEnv, any other an "
        "Env, of gymnasium or of PettingZoo"
        + ("; what is written for the package gym needs it: pip install gym" if needs_gym else "")
    )


def _can_render(factory: Callable[..., Any]) -> bool:
    """Return whether a factory takes a ``render_mode``."""
    parameters = inspect.signature(factory).parameters.values()
    return any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)

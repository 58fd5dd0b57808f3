"""Environments that gymnasium knows by their ids, one by one, as rows, or as its own vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from sampleforge.config import ConfigError
from sampleforge.env.config import EnvConfig
from sampleforge.env.gymnasium_vector import GymnasiumVector
from sampleforge.env.interface import describe, description_of
from sampleforge.env.single import SyncVector
from sampleforge.env.vector import EnvVector

Env = gym.Env[Any, Any]


def gymnasium_env(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Return ``gym.make``'s environment, without the checker, which the probe replaces. Raises
    ConfigError, with gymnasium's message on how to install it, if a library is missing."""
    given: dict[str, Any] = dict(config.env_kwargs)
    if config.max_episode_frames is not None:
        given["max_episode_steps"] = config.max_episode_frames
    if render_mode is not None:
        given["render_mode"] = render_mode
    try:
        return gym.make(config.env, disable_env_checker=True, **given)
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"--env {config.env} needs a package: {error}") from error


def sync_vector(
    config: EnvConfig, make: Callable[[], Env], num_rows: int, seeds: Sequence[int]
) -> SyncVector:
    """Return rows of single envs. Raises ConfigError if the config asks for a vector env."""
    return single_rows(config, lambda row: make(), num_rows, seeds)


def single_rows(
    config: EnvConfig,
    make: Callable[[int], Env],
    num_rows: int,
    seeds: Sequence[int],
) -> SyncVector:
    """As `sync_vector`, where ``make`` is given the number of the row."""
    if config.env_backend == "vector":
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    return SyncVector(config, make, num_rows, seeds)


def gymnasium_rows(
    config: EnvConfig, make: Callable[[], Env], num_rows: int, seeds: Sequence[int]
) -> SyncVector:
    """Return rows of ``gym.make``'s environments, without the wrappers that `bare` removes."""
    return sync_vector(config, lambda: bare(make()), num_rows, seeds)


def bare(env: Env) -> Env:
    """Return ``env`` without the outermost wrappers whose work SyncVector does itself: the time
    limit, which its description has then, and the check that reset comes before step (0.7 us a
    step)."""
    described = description_of(env)
    while isinstance(env, TimeLimit | OrderEnforcing):
        env = env.env
    return describe(env, described)


def without_checkers(env: Env) -> Env:
    """Return ``env`` without the wrappers of ``gym.make`` that check each step, which the probe and
    SyncVector do in their own way: 30% of the steps of CartPole. Other wrappers may be around
    them."""
    outer, above = env, None
    while isinstance(env, gym.Wrapper):
        below = env.env
        if not isinstance(env, PassiveEnvChecker | OrderEnforcing):
            above = env
        elif above is None:
            outer = below
        else:
            above.env = below
        env = below
    return outer


def gymnasium_vector(config: EnvConfig, seeds: Sequence[int]) -> EnvVector:
    """Return rows of the vector env that a gymnasium id has registered. Raises ConfigError if it
    has none."""
    if gym.spec(config.env).vector_entry_point is None:
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    given: dict[str, Any] = dict(config.env_kwargs)
    limit = config.max_episode_steps or gym.spec(config.env).max_episode_steps
    if config.max_episode_steps is not None:
        given["max_episode_steps"] = config.max_episode_steps
    env = gym.make_vec(
        config.env, num_envs=len(seeds), vectorization_mode="vector_entry_point", **given
    )
    return GymnasiumVector(config, env, seeds, max_episode_steps=limit)

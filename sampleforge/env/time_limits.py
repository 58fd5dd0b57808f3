"""The time limits that environments have of their own, beside --max-episode-steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from sampleforge.env.config import EnvConfig
from sampleforge.spec import EnvSpec


def own_limit(env: gym.Env[Any, Any]) -> int | None:
    """Return the shortest time limit among the wrappers of an environment; None if it has none."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(int(env._max_episode_steps))
        env = env.env
    return min(limits, default=None)


def own_limit_of_rows(env: VectorEnv[Any, Any, Any]) -> int | None:
    """Return the time limit of the environments in a SyncVectorEnv; None if they have none, and for
    other VectorEnvs, which do not show their environments."""
    rows = env.unwrapped
    return own_limit(rows.envs[0]) if isinstance(rows, SyncVectorEnv) else None


def shorter_limit(config: EnvConfig, spec: EnvSpec) -> str | None:
    """Return in words that the environment's own time limit ends episodes before
    ``config.max_episode_steps`` does; None if it does not."""
    asked, holds = config.max_episode_steps, spec.max_episode_steps
    if asked is None or holds is None or holds >= asked:
        return None
    return (
        f"--max-episode-steps {asked:,} has no effect: the environment has a time limit of its own "
        f"of {holds:,} steps, which holds; raise that one, or leave the flag out"
    )

"""The family of Box2D tasks: gymnasium's LunarLander, BipedalWalker and CarRacing."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.gymnasium_ids import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import EnvVector

TASKS = (
    "BipedalWalker",
    "BipedalWalkerHardcore",
    "CarRacing",
    "LunarLander",
    "LunarLanderContinuous",
)


def ids() -> list[str]:
    """Return the ids that this version of gymnasium has; it registers them even without Box2D."""
    package = "gymnasium.envs.box2d"
    return [i for i, spec in gym.registry.items() if str(spec.entry_point).startswith(package)]


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)


FAMILY = Family(
    name="box2d",
    claims=lambda env_id: env_id.rpartition("-v")[0] in TASKS,
    ids=ids,
    make_vector=make_vector,
    make_single=gymnasium_env,
    requires="Box2D",
    extra="box2d",
    plain_kwargs=True,
)

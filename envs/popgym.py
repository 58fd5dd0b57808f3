"""The family of POPGym: tasks that need memory, from repeating what was seen to card games and
mazes. They are made for recurrent policies (``--model.core gru``).

Ids are popgym's own (``popgym-RepeatPreviousEasy-v0``), each in three levels, Easy, Medium and
Hard. The environments end their episodes themselves, and returns are between -1 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.gymnasium_ids import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import EnvVector

PREFIX = "popgym-"


def ids() -> list[str]:
    """Return the ids that popgym registers when it is imported; empty if it is not installed."""
    if not FAMILY.installed:
        return []
    import popgym  # noqa: F401

    return [env_id for env_id in gym.registry if env_id.startswith(PREFIX)]


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)


FAMILY = Family(
    name="popgym",
    claims=lambda env_id: env_id.startswith(PREFIX),
    ids=ids,
    make_vector=make_vector,
    make_single=gymnasium_env,
    requires="popgym",
    extra="popgym",
    plain_kwargs=True,
    needs_memory=True,
)

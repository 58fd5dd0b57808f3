"""The family of PettingZoo's own environments, in which several agents act.

Ids are ``PettingZoo/`` and PettingZoo's id: ``PettingZoo/butterfly/pistonball-v6``,
``PettingZoo/classic/connect_four-v3``. Environments of other packages with PettingZoo's interface
need no family: ``--env mpe2.simple_tag_v3:parallel_env`` names their function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Family
from sampleforge.env.parallel import ParallelRows
from sampleforge.env.vector import EnvVector

PREFIX = "PettingZoo/"


def ids() -> list[str]:
    """Return the ids that PettingZoo registers; empty if it is not installed."""
    if not FAMILY.installed:
        return []
    import pettingzoo

    return sorted(PREFIX + env_id for env_id in pettingzoo.aec_registry)


def make_env(config: EnvConfig, render_mode: str | None = None) -> Any:
    """Return one environment: a ParallelEnv if there is one, else an AECEnv. Raises ConfigError,
    with PettingZoo's message on how to install it, if a library is missing."""
    import pettingzoo
    from pettingzoo.env_registry.exceptions import FailedToImport

    env_id = config.env.removeprefix(PREFIX)
    kind = "parallel" if env_id in pettingzoo.parallel_registry else "aec"
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    try:
        return pettingzoo.make(kind, env_id, **config.env_kwargs, **rendering)
    except (FailedToImport, ImportError) as error:
        raise ConfigError(f"--env {config.env} needs a package: {error}") from error


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    if config.env_backend == "vector":
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    rows = ParallelRows(
        config, lambda row: make_env(config), num_rows, seeds, protocol="PettingZoo, raw rewards"
    )
    return rows.seats[0]


FAMILY = Family(
    name="pettingzoo",
    claims=lambda env_id: env_id.startswith(PREFIX),
    ids=ids,
    make_vector=make_vector,
    make_single=make_env,
    requires="pettingzoo",
    extra="multiagent",
    plain_kwargs=True,
)

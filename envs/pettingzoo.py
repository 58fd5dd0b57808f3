"""The family of PettingZoo's own environments, in which several agents act.

Ids are ``PettingZoo/`` and the module: ``PettingZoo/butterfly/pistonball_v6``,
``PettingZoo/classic/connect_four_v3``. Environments of other packages with PettingZoo's interface
need no family: ``--env mpe2.simple_tag_v3:parallel_env`` names their function.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Family
from sampleforge.env.parallel import ParallelRows
from sampleforge.env.vector import EnvVector

PREFIX = "PettingZoo/"
VERSIONED = re.compile(r".+_v\d+")


def ids() -> list[str]:
    """Return the ids of all modules of PettingZoo that have a version; empty if it is not
    installed."""
    package = importlib.util.find_spec("pettingzoo") if FAMILY.installed else None
    if package is None:
        return []
    found = []
    for root in package.submodule_search_locations or ():
        for group in pkgutil.iter_modules([root]):
            modules = pkgutil.iter_modules([os.path.join(root, group.name)])
            found += [
                f"{PREFIX}{group.name}/{module.name}"
                for module in modules
                if VERSIONED.fullmatch(module.name)
            ]
    return sorted(found)


def make_env(config: EnvConfig) -> Any:
    """Return one environment, with the interface of a ParallelEnv if it has one."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    group, _, name = config.env.removeprefix(PREFIX).partition("/")
    try:
        module = importlib.import_module(f"pettingzoo.{group}.{name}")
    except ImportError as error:
        raise ConfigError(
            f'--env {config.env} needs packages: pip install "pettingzoo[{group}]" ({error})'
        ) from error
    make = getattr(module, "parallel_env", None) or module.env
    return make(**config.env_kwargs)


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    if config.env_backend == "vector":
        raise ConfigError(
            f"{config.env} has no vector env of its own; use --env-backend auto or single"
        )
    rows = ParallelRows(
        config, lambda: make_env(config), num_rows, seeds, protocol="PettingZoo, raw rewards"
    )
    return rows.seats[0]


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    raise ConfigError(f"{config.env} has several agents, so it is no single gymnasium environment")


FAMILY = Family(
    name="pettingzoo",
    claims=lambda env_id: env_id.startswith(PREFIX),
    ids=ids,
    make_vector=make_vector,
    make_single=make_single,
    requires="pettingzoo",
    extra="multiagent",
    plain_kwargs=True,
)

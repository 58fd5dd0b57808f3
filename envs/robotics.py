"""The family of gymnasium-robotics: Fetch, the Shadow hand, mazes of a point and an ant, Adroit and
the kitchen. Most of them have goals, which ``--her`` learns from (`sampleforge.env.goals`).

Ids are gymnasium's own, in their newest version. Fetch and hand take mujoco 3.11 at most: in 3.12 a
type of joint is no number any more.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.gymnasium_ids import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import EnvVector
from sampleforge_envs.mujoco import log_warnings

PACKAGE = "gymnasium_robotics"
NAMES = re.compile(r"(Fetch|Hand|PointMaze|AntMaze|AdroitHand|FrankaKitchen)\w*-v\d+")
"""Of its own environments. It also registers gymnasium's former ones, which only say so."""


@functools.cache
def ids() -> tuple[str, ...]:
    """Return the newest version of each environment; empty if the package is not installed."""
    if not FAMILY.installed:
        return ()
    with contextlib.redirect_stderr(io.StringIO()):  # a notice in every process
        import gymnasium_robotics
    gym.register_envs(gymnasium_robotics)
    specs = [s for s in gym.registry.values() if str(s.entry_point).startswith(PACKAGE)]
    newest: dict[str, int] = {}
    for spec in specs:
        if NAMES.fullmatch(spec.id):
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    return tuple(f"{name}-v{version}" for name, version in newest.items())


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    log_warnings()
    return gymnasium_env(config, render_mode)


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return gymnasium_rows(config, lambda: make_single(config), num_rows, seeds)


FAMILY = Family(
    name="robotics",
    claims=lambda env_id: NAMES.fullmatch(env_id) is not None,
    ids=ids,
    make_vector=make_vector,
    make_single=make_single,
    requires=PACKAGE,
    extra="robotics",
    plain_kwargs=True,
)

"""The family of MuJoCo tasks for locomotion and manipulation, gymnasium's -v5 ids.

Observations are float64 and stored as float32; actions are clipped to their bounds. Rows
step one after the other: almost all of the time goes into MuJoCo's own step (HalfCheetah 50 us, Ant
350 us).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Description, Family, describe
from sampleforge.env.gymnasium_ids import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import EnvVector

TASKS = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
IDS = tuple(f"{task}-v5" for task in TASKS)
GONE = tuple(f"{task}-v{version}" for task in TASKS for version in (1, 2, 3))
"""Earlier versions, whose simulator does not install any more. (-v4 runs as a plain gymnasium
id.)"""
DESCRIPTION = Description(
    protocol="gymnasium -v5 task, raw rewards, actions clipped to their bounds"
)

log = logging.getLogger(__name__)


@functools.cache
def _log(message: str) -> None:
    """Log a message of MuJoCo once per process. A message about a deprecated word in gymnasium's
    model file is only informative, because it needs no action."""
    log.log(logging.INFO if "deprecated" in message else logging.WARNING, "MuJoCo: %s", message)


def log_warnings() -> None:
    """Log MuJoCo's warnings, each once. MuJoCo would print every one for every row, and write it to
    MUJOCO_LOG.TXT."""
    import mujoco

    mujoco.set_mju_user_warning(_log)


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    log_warnings()
    return describe(gymnasium_env(config, render_mode), DESCRIPTION)


class SharedModelEnvs:
    """Makes environments that share one MuJoCo model, which a step only reads. 64 copies of the
    model would evict each other from the cache: 33 to 42 us per step instead of 32."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._model: Any = None

    def __call__(self) -> gym.Env[Any, Any]:
        env = make_single(self._config)
        simulator: Any = env.unwrapped
        if self._model is None:
            self._model = simulator.model
        simulator.model = self._model
        return env


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return gymnasium_rows(config, SharedModelEnvs(config), num_rows, seeds)


def meant(env_id: str) -> str | None:
    """Return the id of the task that an id of Sample Factory (mujoco_walker) names, or None."""
    prefix, _, name = env_id.lower().partition("_")
    if prefix != "mujoco" or not name:
        return None
    names = (task for task in TASKS if task.lower().removeprefix("inverted").startswith(name))
    return next((f"{task}-v5" for task in names), None)


FAMILY = Family(
    name="mujoco",
    claims={*IDS, *GONE}.__contains__,
    ids=lambda: IDS,
    make_vector=make_vector,
    make_single=make_single,
    requires="mujoco",
    extra="mujoco",
    plain_kwargs=True,
    meant=meant,
)

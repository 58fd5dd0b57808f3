"""The family of DeepMind's control suite, ``dm_control/cheetah-run``: domain and task.

Rewards are between 0 and 1, and most episodes have 1,000 env steps, which a time limit ends. The
observation is a Dict of the task's own names. Keyword arguments are those of the task. The suite
runs on mujoco 3.8 alone: dm-control asks for 3.8.1, and reads what later ones do not have.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Description, Family, describe
from sampleforge.env.gymnasium_ids import sync_vector
from sampleforge.env.vector import EnvVector
from sampleforge_envs.mujoco import log_warnings

PREFIX = "dm_control/"
VERSION = "-v0"
"""The end of the ids that shimmy gives the same tasks."""
PICTURE = {"height": 240, "width": 320, "camera_id": 0}


def suite() -> Any:
    """Return dm_control.suite."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no display, which only a window needs
        from dm_control import suite

    return suite


def ids() -> list[str]:
    """Return the ids of all tasks; empty if dm-control is not installed."""
    tasks = suite().ALL_TASKS if FAMILY.installed else ()
    return [f"{PREFIX}{domain}-{task}" for domain, task in tasks]


class SuiteTask(gym.Env[dict[str, Any], Any]):
    """A task of the suite as an environment of gymnasium. ``limit``: its time limit in env steps,
    if it has one."""

    def __init__(
        self, domain: str, task: str, render_mode: str | None = None, **task_kwargs: Any
    ) -> None:
        self._env = suite().load(domain, task, task_kwargs=task_kwargs)
        steps = self._env._step_limit
        self.limit = int(steps) if math.isfinite(steps) else None
        self.render_mode = render_mode
        rate = round(1 / self._env.control_timestep())
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(-np.inf, np.inf, leaf.shape, np.float64)
                for name, leaf in self._env.observation_spec().items()
            }
        )
        action = self._env.action_spec()
        low, high = action.minimum.astype(np.float32), action.maximum.astype(np.float32)
        self.action_space = spaces.Box(low, high, action.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self._env.task.random.seed(seed)
        return self._observed(self._env.reset()), {}

    def step(self, action: Any) -> Any:
        step = self._env.step(action)
        over = bool(step.last())
        terminated = over and step.discount == 0
        return self._observed(step), float(step.reward), terminated, over and not terminated, {}

    def render(self) -> Any:
        return self._env.physics.render(**PICTURE)

    def close(self) -> None:
        self._env.close()

    def _observed(self, step: Any) -> dict[str, Any]:
        return {name: np.asarray(value, np.float64) for name, value in step.observation.items()}


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    domain, _, task = config.env.removeprefix(PREFIX).partition("-")
    log_warnings()
    env = SuiteTask(domain, task, render_mode, **config.env_kwargs)
    describe(
        env, Description(protocol="dm_control suite, raw rewards", max_episode_steps=env.limit)
    )
    limit = config.max_episode_frames
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return sync_vector(config, lambda: make_single(config).unwrapped, num_rows, seeds)


def meant(env_id: str) -> str | None:
    """Return the id of the task that shimmy's id names, or None."""
    ours = env_id.startswith(PREFIX) and env_id.endswith(VERSION)
    return env_id.removesuffix(VERSION) if ours else None


FAMILY = Family(
    name="dm_control",
    claims=lambda env_id: env_id.startswith(PREFIX) and not env_id.endswith(VERSION),
    ids=ids,
    make_vector=make_vector,
    make_single=make_single,
    requires="dm_control",
    extra="dm-control",
    plain_kwargs=True,
    meant=meant,
)

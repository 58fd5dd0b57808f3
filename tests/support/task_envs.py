"""Fake environments that take tasks: each class is a factory, such as
`--env tests.support.task_envs:TaskEnv`."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from tests.support.envs import CodeEnv, CountingVectorEnv, Info, Step
from tests.support.multi_agent import CodeParallelEnv

NO_TASK = -1


class TaskEnv(CodeEnv):
    """CodeEnv with episodes of ``length`` steps, whose last number in an observation is the task
    (-1: none), and whose rewards are the task. Refuses a task in the middle of an episode."""

    def __init__(self, length: int = 5, **kwargs: Any) -> None:
        super().__init__(length=length, **kwargs)
        self.task = NO_TASK

    def set_task(self, task: Any) -> None:
        assert self.episode < 0 or self.steps == self.length, "in the middle of an episode"
        self.task = task

    def observation(self) -> Any:
        observation = super().observation()
        observation[3] = self.task
        return observation

    def step(self, action: Any) -> Step:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.task), terminated, truncated, info


class RaisingTaskEnv(TaskEnv):
    """Raises ValueError("deliberate") at its third step; its successors do so, too."""

    def step(self, action: Any) -> Step:
        if self.steps == 2:
            raise ValueError("deliberate")
        return super().step(action)


def wrapped() -> gym.Env[Any, Any]:
    """A TaskEnv within a wrapper that knows nothing of tasks."""
    return gym.wrappers.TransformReward(TaskEnv(), lambda reward: reward)


class TaskVectorEnv(CountingVectorEnv):
    """CountingVectorEnv of TaskEnvs, whose rows take the task from their next reset on."""

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.envs = [WaitingTaskEnv(env_id=row) for row in range(num_envs)]

    def set_task(self, task: Any) -> None:
        for env in self.envs:
            assert isinstance(env, WaitingTaskEnv)
            env.set_task(task)


class WaitingTaskEnv(TaskEnv):
    """A TaskEnv that takes a task at any time, and begins with it when it is reset."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.next = NO_TASK

    def set_task(self, task: Any) -> None:
        self.next = task

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.task = self.next
        return super().reset(seed=seed, options=options)


def gymnasium_rows(num_envs: int = 1) -> VectorEnv[Any, Any, Any]:
    """gymnasium's own VectorEnv of environments that take tasks; they differ in their lengths."""
    return SyncVectorEnv([partial(WaitingTaskEnv, length=4 + row) for row in range(num_envs)])


class TaskParallelEnv(CodeParallelEnv):
    """CodeParallelEnv in whose observations the task is in the place of the last action."""

    task = NO_TASK

    def set_task(self, task: Any) -> None:
        assert not self.agents, "in the middle of an episode"
        self.task = task

    def _observe(self, agent: str) -> Any:
        observation = super()._observe(agent)
        observation[3] = self.task
        return np.asarray(observation)


class LevelEnv(CodeEnv):
    """CodeEnv whose task is {"level": number}, which is the return of an episode."""

    def __init__(self) -> None:
        super().__init__(length=4)
        self.level = 0.0

    def set_task(self, task: Any) -> None:
        self.level = task["level"]

    def step(self, action: Any) -> Step:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.level / self.length, terminated, truncated, info

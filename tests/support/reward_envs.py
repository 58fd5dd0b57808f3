"""A task learned in seconds whose rewards have any size and begin at any time."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class CueEnv(gym.Env[Any, Any]):
    """Each observation shows one of four cues; the action that names it is right. An episode of
    ``length`` steps terminates; its last step pays ``scale`` times the share of right actions.
    Random: a quarter of ``scale``; the best: ``scale``.

    ``silent``: the first steps of an env pay nothing. ``every_step``: each right action pays at
    once.
    """

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(
        self, scale: float = 1.0, silent: int = 0, length: int = 5, every_step: bool = False
    ) -> None:
        self.scale, self.silent, self.length = scale, silent, length
        self.every_step = every_step
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.right = 0, 0
        return self._show(), {}

    def _show(self) -> Any:
        self.cue = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.cue]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_right = int(action) == self.cue
        self.steps += 1
        self.taken += 1
        self.right += is_right
        ended = self.steps == self.length
        paid = is_right if self.every_step else self.right * ended
        reward = self.scale * paid / self.length if self.taken > self.silent else 0.0
        return self._show(), reward, ended, False, {}


class ScaledCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 with rewards of ``scale``; the first ``silent`` steps of an env pay nothing."""

    def __init__(self, scale: float = 1.0, silent: int = 0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.scale, self.silent, self.taken = scale, silent, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.taken += 1
        paid = self.scale * float(reward) if self.taken > self.silent else 0.0
        return observation, paid, terminated, truncated, info


class ShapedEnv(gym.Env[Any, Any]):
    """Episodes of 10 steps, whose true result is the number of steps with action 1. The reward of
    each is ``reward_shaping["bonus"]``, and that of a step with action 0 ``["cost"]``."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    used: ClassVar[set[float]] = set()
    """The bonuses that rewards of this process were computed with."""

    def __init__(self) -> None:
        self.reward_shaping = {"bonus": 0.5, "cost": 0.25}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = self.done = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.done += int(action)
        self.used.add(self.reward_shaping["bonus"])
        reward = self.reward_shaping["bonus" if action else "cost"]
        seen = np.array([self.steps / 10, reward / 10], np.float32)
        return seen, reward, self.steps == 10, False, {"true_objective": float(self.done)}

"""Fake environments that give one absurd finite number each."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from tests.support.stacked_envs import said


class SpikeEnv(gym.Env[Any, Any]):
    """Each observation shows one of three targets and a clock of its own scale; the action that
    names the target earns 1, in episodes of ``length`` steps. Random: a third of ``length``.

    The ``at``-th step of an env gives ``value``: as its reward, or as element 0 of its observation;
    ``where`` is empty for never. ``bounded``: the space says that no observation is above 3.
    """

    def __init__(
        self,
        where: Literal["", "obs", "reward"] = "",
        value: float = 1e8,
        at: int = 100,
        length: int = 20,
        bounded: bool = False,
    ) -> None:
        limit = 3.0 if bounded else np.inf
        self.observation_space = spaces.Box(-limit, limit, (4,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.where, self.value, self.at, self.length = where, value, at, length
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def _show(self) -> Any:
        self.target = int(self.np_random.integers(3))
        shown = np.full(4, 0.01 * self.steps, np.float32)
        shown[:3] = np.eye(3)[self.target] + self.np_random.normal(0, 0.1, 3)
        return shown.clip(-3, 3)

    def _reward(self, action: Any) -> float:
        return float(int(action) == self.target)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = self._reward(action)
        self.taken += 1
        shown = self._show()
        if self.taken == self.at:
            if self.where == "reward":
                reward = self.value
            elif self.where == "obs":
                shown[0] = self.value
        return shown, reward, self.steps == self.length, False, {}


class HardSpikeEnv(SpikeEnv):
    """SpikeEnv in which what was absurd would show in the return: element 0 alone tells the target,
    as -1, 0 or 1, and a reward comes two steps after its action, the last ones at the end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.owed = [0.0, 0.0]
        return super().reset(seed=seed, options=options)

    def _show(self) -> Any:
        shown = super()._show()
        shown[:3] = self.np_random.normal(0, 0.1, 3)
        shown[0] += self.target - 1
        return shown

    def _reward(self, action: Any) -> float:
        self.owed.append(super()._reward(action))
        return sum(self.owed) if self.steps == self.length else self.owed.pop(0)


class BoxSpikeEnv(SpikeEnv):
    """SpikeEnv whose action is a number from -1 to 1; its third (0, 1 or 2) is what counts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _reward(self, action: Any) -> float:
        return super()._reward(min(2, int(1.5 * (1.0 + float(action[0])))))


class HardBoxSpikeEnv(BoxSpikeEnv, HardSpikeEnv):
    """HardSpikeEnv for continuous control."""


def stacked_spikes(**kwargs: Any) -> Any:
    """SpikeEnv in stacks of 4 frames."""
    return said(FrameStackObservation(SpikeEnv(**kwargs), 4, padding_type="zero"), "zero")

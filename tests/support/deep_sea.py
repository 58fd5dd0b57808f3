"""Deep sea, a task that takes deep exploration (Osband et al. 2019, arXiv 1908.03568, appendix
A)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class DeepSea(gym.Env[Any, Any]):
    """A grid of ``size`` x ``size`` cells, one-hot [size * size]; an episode begins in the corner
    above on the left and falls a row at each of its ``size`` steps, to the left or to the right.

    Which action goes to the right differs from cell to cell, by the task's ``mapping_seed``. A step
    to the right costs 0.01 / ``size``; the last one into the corner on the right pays 1. The best
    return is 0.99, which random actions find in one of 2 ** ``size`` episodes.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, size: int = 10, mapping_seed: int = 42) -> None:
        self.size = size
        self.observation_space = spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self._right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._cell(), {}

    def _cell(self) -> Any:
        cell = np.zeros(self.size * self.size, np.float32)
        if self._row < self.size:
            cell[self._row * self.size + self._column] = 1.0
        return cell

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        goes_right = int(action) == self._right[self._row, self._column]
        reward = -0.01 / self.size if goes_right else 0.0
        if goes_right and self._column == self.size - 1:
            reward += 1.0
        self._column = min(max(self._column + (1 if goes_right else -1), 0), self.size - 1)
        self._row += 1
        return self._cell(), reward, self._row == self.size, False, {}

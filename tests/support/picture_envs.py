"""Environments that draw themselves: each frame shows by its brightness which step it is of."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HEIGHT, WIDTH = 47, 63
STEP = 30
"""Difference in brightness between two steps."""


class PictureEnv(gym.Env[Any, Any]):
    """Episodes of 3, 4, 5, 3, 4 ... steps; a reward of 1 for each. ``picture``: "frame", or what is
    wrong with it. ``scale``: what observations are multiplied by."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, render_mode: str | None = None, picture: str = "frame", scale: float = 1.0
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._picture, self._scale = picture, scale
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observation(), 1.0, self._step == 3 + self._episode % 3, False, {}

    def _observation(self) -> Any:
        return np.full(3, self._scale * self._step / 10, np.float32)

    def render(self) -> Any:
        if self._picture == "raises":
            raise RuntimeError("deliberate: no screen")
        if self._picture == "nothing":
            return None
        return np.full((HEIGHT, WIDTH, 3), STEP * (1 + self._step), np.uint8)


def without_render_mode(picture: str = "frame") -> PictureEnv:
    """A factory that cannot be asked to draw."""
    return PictureEnv(picture=picture)


def passes_all_on(**kwargs: Any) -> PictureEnv:
    """A factory that seems to take a render_mode, and whose environment does not."""
    return without_render_mode(**kwargs)


class PictureAgents:
    """Two agents in one picture: episodes of 3 steps, a reward of 1 for each agent and step."""

    metadata = {"name": "pictures", "render_fps": 10}  # noqa: RUF012
    possible_agents = ("red", "blue")

    def __init__(self, render_mode: str | None = None, scale: float = 1.0) -> None:
        self.render_mode = render_mode
        self._scale = scale
        self.agents: list[str] = []
        self._step = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def _seen(self) -> dict[str, Any]:
        return self._each(np.full(3, self._scale * self._step / 10, np.float32))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.agents = list(self.possible_agents)
        self._step = 0
        return self._seen(), self._each({})

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._step += 1
        ended = self._step == 3
        if ended:
            self.agents = []
        ends, none = self._each(ended), self._each(False)
        return self._seen(), self._each(1.0), ends, none, self._each({})

    def render(self) -> Any:
        return np.full((HEIGHT, WIDTH, 3), STEP * (1 + self._step), np.uint8)

    def close(self) -> None:
        pass

"""CartPole at a stated pace: each step also waits, as for a simulator that works elsewhere."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps ``step_ms`` milliseconds in each step, so that a run leaves processor time over."""

    def __init__(self, env: gymnasium.Env[Any, Any], step_ms: float) -> None:
        super().__init__(env)
        self._seconds = step_ms / 1000

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)


def cartpole(step_ms: float = 0.5) -> gymnasium.Env[Any, Any]:
    return Paced(gymnasium.make("CartPole-v1"), step_ms)

"""How much of the training is done, as every process can tell."""

from __future__ import annotations

from dataclasses import dataclass
from time import time

from sampleforge.data.counters import Counters


@dataclass(frozen=True)
class Progress:
    """Env steps and seconds so far, earlier runs of the same folder counted in, and their limits.

    ``started`` is the wall clock (seconds since the epoch) at which this run began.
    """

    counters: Counters
    started: float
    base_env_steps: int = 0
    base_wall_s: float = 0.0
    limit_env_steps: int | None = None
    limit_s: float | None = None

    @property
    def env_steps(self) -> int:
        return self.base_env_steps + int(self.counters.total("env_steps"))

    @property
    def wall_s(self) -> float:
        return self.base_wall_s + time() - self.started

    @property
    def fraction(self) -> float:
        """Part of the nearer limit that is used up, 0 to 1; 0 without limits."""
        parts = [0.0]
        if self.limit_env_steps is not None:
            parts.append(self.env_steps / max(1, self.limit_env_steps))
        if self.limit_s is not None:
            parts.append(self.wall_s / max(1e-9, self.limit_s))
        return min(1.0, max(parts))

    @property
    def done(self) -> bool:
        return self.fraction >= 1.0


@dataclass(frozen=True)
class AgreedProgress(Progress):
    """Done when ``ranks`` say that all have agreed on it: they end together, after an update, so
    that nothing that was sampled is lost and none leaves while another waits for it."""

    ranks: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        return bool(self.counters.column("ended")[list(self.ranks)].all())

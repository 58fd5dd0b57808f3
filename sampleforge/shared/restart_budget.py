"""How often actors that were killed have been replaced."""

from __future__ import annotations

from sampleforge.shared.arrays import SharedArrays


class RestartBudget:
    """The driver replaces any of ``workers`` actors, at most ``limit`` times all in all. The lives
    of each are in shared memory: a successor must not play the same episodes again."""

    def __init__(self, workers: int, limit: int) -> None:
        self.workers = workers
        self.limit = limit
        self._arrays = SharedArrays({"lives": ((workers,), "int64")})

    @property
    def total(self) -> int:
        """RestartBudget so far."""
        return int(self._arrays["lives"].sum())

    def life(self, worker: int) -> int:
        """How often this one was replaced."""
        return int(self._arrays["lives"][worker])

    def begin(self, worker: int) -> bool:
        """Begin another life; False if that has happened too often."""
        if self.total >= self.limit:
            return False
        self._arrays["lives"][worker] += 1
        return True

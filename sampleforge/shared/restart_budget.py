"""The number of restarts of a run's workers of one kind, and its limit."""

from __future__ import annotations

from sampleforge.shared.arrays import SharedArrays


class RestartBudget:
    """Counts the restarts of ``workers`` workers of one kind: the driver may make ``limit``.

    The count of each worker is in shared memory: its next life seeds its episodes and actions by
    it, so that it does not repeat them."""

    def __init__(self, workers: int, limit: int) -> None:
        self.workers = workers
        self.limit = limit
        self._arrays = SharedArrays({"lives": ((workers,), "int64")})

    @property
    def total(self) -> int:
        """Number of restarts so far."""
        return int(self._arrays["lives"].sum())

    def life(self, worker: int) -> int:
        """Return how often ``worker`` was restarted."""
        return int(self._arrays["lives"][worker])

    def begin(self, worker: int) -> bool:
        """Count a restart of ``worker``; return False if the budget is used up."""
        if self.total >= self.limit:
            return False
        self._arrays["lives"][worker] += 1
        return True

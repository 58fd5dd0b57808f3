"""How often a group of ranks has been formed anew, because one had died and was replaced."""

from __future__ import annotations

from sampleforge.data.shared import SharedArrays


class Regrouping:
    """``generation`` counts the groups from 0. The driver alone begins a new one, at most ``limit``
    times; the ranks see it in shared memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._arrays = SharedArrays({"generation": ((1,), "int64")})

    @property
    def generation(self) -> int:
        return int(self._arrays["generation"][0])

    def begin(self) -> bool:
        """Have all ranks form a new group; False if that has happened too often."""
        if self.generation >= self.limit:
            return False
        self._arrays["generation"][0] += 1
        return True

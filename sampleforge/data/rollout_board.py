"""How far everybody is with sampling: what ranks of one machine tell each other without waiting."""

from __future__ import annotations

from typing import Protocol

from sampleforge.data.shared import SharedArrays


class Board(Protocol):
    """A mark for every rank, which only that rank moves; read without waiting. What the marks mean
    is for those to say who use it: see `sampleforge.workers.preemption`. ``latency``: seconds until
    others know of it."""

    latency: float

    def mark(self, rank: int, mark: int) -> None: ...

    def reached(self, mark: int) -> int:
        """How many ranks are known to have come so far."""

    def missing(self, mark: int) -> list[int] | None:
        """The ranks that have not; None if that cannot be known now."""


class RolloutBoard:
    """In shared memory, a cache line and a single writer per rank. All marks are 0 at first."""

    latency = 0.0

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._arrays = SharedArrays({"marks": ((ranks, 8), "int64")})

    def mark(self, rank: int, mark: int) -> None:
        self._arrays["marks"][rank, 0] = mark

    def reached(self, mark: int) -> int:
        return int((self._arrays["marks"][:, 0] >= mark).sum())

    def missing(self, mark: int) -> list[int]:
        reached = self._arrays["marks"][:, 0] >= mark
        return [rank for rank in range(self._ranks) if not reached[rank]]

"""Who has finished sampling: what ranks of one machine tell each other without waiting."""

from __future__ import annotations

from typing import Protocol

from sampleforge.data.shared import SharedArrays


class Board(Protocol):
    """Who has finished sampling, asked without waiting."""

    def finish(self, rank: int, iteration: int) -> None: ...

    def finished(self, iteration: int) -> int: ...

    def missing(self, iteration: int) -> list[int] | None:
        """None if that cannot be known now."""


class RolloutBoard:
    """For every rank the number of its latest iteration whose rollouts are complete, from 1.

    In shared memory, a cache line and a single writer per rank. Keyed by the iteration, so that a
    rank which is ahead is never taken for one of an earlier or later round.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._arrays = SharedArrays({"finished": ((ranks, 8), "int64")})

    def finish(self, rank: int, iteration: int) -> None:
        self._arrays["finished"][rank, 0] = iteration

    def finished(self, iteration: int) -> int:
        """How many ranks have complete rollouts of this iteration."""
        return int((self._arrays["finished"][:, 0] >= iteration).sum())

    def missing(self, iteration: int) -> list[int]:
        """The ranks that have not."""
        finished = self._arrays["finished"][:, 0] >= iteration
        return [rank for rank in range(self._ranks) if not finished[rank]]

"""When the rollouts of a rank end: so that none waits long for another (arXiv 1911.00357)."""

from __future__ import annotations

import math

from sampleforge.data.rollout_board import Board


class Preemption:
    """Ends the rollouts of ``rank`` after ``t`` steps once ``sync_fraction`` of the ranks have
    theirs, of ``rollout`` steps, and t is at least ``min_rollout_fraction`` of those.

    A rank that is early goes on sampling until then, where its slots have room for it: the paper
    lets it wait, and of equal ranks with uneven steps up to half of the waiting is that.

    ``iteration`` counts rounds of rollouts and an update, from 1.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        ranks: int,
        rollout: int,
        sync_fraction: float,
        min_rollout_fraction: float,
    ) -> None:
        self._board = board
        self._rank = rank
        self._enough = math.ceil(sync_fraction * ranks - 1e-9)
        self._rollout = rollout
        self._least = max(1, math.ceil(min_rollout_fraction * rollout - 1e-9))
        self._told = 0
        self._short = 0
        self.iteration = 1

    def ends(self, t: int) -> bool:
        """Whether a rollout ends here, if all of this rank have ``t`` steps."""
        if t >= self._rollout:
            self.finish()
        ends = t >= self._least and self._board.finished(self.iteration) >= self._enough
        self._short += ends and t < self._rollout
        return ends

    def finish(self) -> None:
        """This rank's rollouts are complete, or need not be."""
        if self._told < self.iteration:
            self._told = self.iteration
            self._board.finish(self._rank, self.iteration)

    def take_short(self) -> int:
        """How many rollouts were cut short since the last time."""
        short, self._short = self._short, 0
        return short

    def missing(self) -> list[int] | None:
        """The ranks whose rollouts are not; None if that cannot be known now."""
        return self._board.missing(self.iteration)

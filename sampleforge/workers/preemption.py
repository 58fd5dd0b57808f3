"""When the rollouts of a rank end: so that none waits long for another (arXiv 1911.00357)."""

from __future__ import annotations

import math

from sampleforge.data.rollout_board import Board


class Preemption:
    """Ends the rollouts of ``rank`` after ``t`` steps once ``sync_fraction`` of the ranks have
    theirs, of ``rollout`` steps, and t is at least ``min_rollout_fraction`` of those.

    A rank that is early goes on sampling until then, where its slots have room for it: the paper
    lets it wait, and of equal ranks with uneven steps half of the waiting is that.

    ``iteration`` counts rounds of rollouts and an update, from 1. In each a rank's mark on the
    board is moved twice: when it has its steps, and when it samples no more. Keyed by the
    iteration, so that a rank which is ahead is never taken for one of another round.
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
        self._has_steps = self._cut_short = False
        self.iteration = 1

    def begin(self) -> None:
        """The rollouts of ``iteration`` begin: for the first time, or anew after a loss."""
        self._has_steps = self._cut_short = False
        self._board.mark(self._rank, self._done - 2)

    def ends(self, t: int) -> bool:
        """Whether the rollouts end here, all of which have ``t`` steps or more."""
        if t >= self._rollout and not self._has_steps:
            self._has_steps = True
            self._board.mark(self._rank, self._done - 1)
        ends = t >= self._least and self._board.reached(self._done - 1) >= self._enough
        self._cut_short |= ends and t < self._rollout
        return ends

    def finish(self) -> bool:
        """This rank samples no more. Whether its rollouts were cut short."""
        self._board.mark(self._rank, self._done)
        return self._cut_short

    def missing(self) -> list[int] | None:
        """The ranks that still sample; None if that cannot be known now."""
        return self._board.missing(self._done)

    @property
    def _done(self) -> int:
        """The mark of a rank that samples no more."""
        return 2 * self.iteration

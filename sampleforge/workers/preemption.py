"""When a rank stops waiting for its environments: the others wait for it (arXiv 1911.00357)."""

from __future__ import annotations

import math

from sampleforge.data.rollout_board import Board


class Preemption:
    """Ends the rollouts of ``rank`` after ``t`` of ``rollout`` steps once t is at least
    ``min_rollout_fraction`` of them and ``sync_fraction`` of the ranks have finished theirs.

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
        self._least = max(1, math.ceil(min_rollout_fraction * rollout - 1e-9))
        self.iteration = 1

    def ends(self, t: int) -> bool:
        """Whether a rollout of ``t`` steps ends here."""
        return t >= self._least and self._board.finished(self.iteration) >= self._enough

    def finish(self) -> None:
        """This rank's rollouts are complete."""
        self._board.finish(self._rank, self.iteration)

    def missing(self) -> list[int] | None:
        """The ranks whose rollouts are not; None if that cannot be known now."""
        return self._board.missing(self.iteration)

"""When the rollouts of a rank end: so that none waits long for another (arXiv 1911.00357)."""

from __future__ import annotations

import math
from enum import IntEnum
from time import perf_counter

from sampleforge.distributed.progress_board import Board

STALE = 0.05
"""Part of a round that a board's latency may be: in shorter ones nobody goes on after his steps,
whom others, who have theirs as well, cannot tell so in time."""


class Stage(IntEnum):
    """How far a rank is in an iteration; with its number, the rank's mark on the board."""

    SAMPLING = 0
    LAST_STEP = 1
    """The next steps are the last that were asked for."""
    HAS_STEPS = 2
    SAMPLES_NO_MORE = 3


class Preemption:
    """Ends the rollouts of ``rank`` after ``t`` steps once ``sync_fraction`` of the ranks have
    theirs, of ``rollout`` steps, and t is at least ``min_rollout_fraction`` of those.

    A rank that is early goes on sampling, where its slots have room for it: the paper lets it wait,
    and of equal ranks with uneven steps half of the waiting is that. But it begins no step when so
    many others are in their last one: they would wait for it.

    ``at_once`` of the steps are taken together. ``iteration`` counts rounds of rollouts and an
    update, from 1; marks are keyed by it, so that a rank which is ahead is never taken for one of
    another round.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        ranks: int,
        rollout: int,
        sync_fraction: float,
        min_rollout_fraction: float,
        at_once: int = 1,
    ) -> None:
        self._board = board
        self._rank = rank
        self._enough = math.ceil(sync_fraction * ranks - 1e-9)
        self._rollout = rollout
        self._least = max(1, math.ceil(min_rollout_fraction * rollout - 1e-9))
        self._at_once = at_once
        self._stage = Stage.SAMPLING
        self._cut_short = False
        self._began = 0.0
        self.iteration = 1

    def begin(self) -> None:
        """The rollouts of ``iteration`` begin: for the first time, or anew after a loss."""
        self._cut_short = False
        self._began = perf_counter()
        self._enter(Stage.SAMPLING)

    def forget(self) -> None:
        """Take back the mark of a predecessor, before the others are met: where none of them has
        survived, iterations count from 1 again."""
        self._board.mark(self._rank, 0)

    def ends(self, t: int) -> bool:
        """Whether the rollouts end here, all of which have ``t`` steps or more."""
        has_steps = t >= self._rollout
        if t >= self._rollout - self._at_once and self._stage < Stage.HAS_STEPS:
            self._enter(Stage.HAS_STEPS if has_steps else Stage.LAST_STEP)
        if has_steps and self._board.latency > STALE * (perf_counter() - self._began):
            return True
        if t < self._least or not self._reached(Stage.LAST_STEP if has_steps else Stage.HAS_STEPS):
            return False
        self._cut_short |= not has_steps
        return True

    def finish(self) -> bool:
        """This rank samples no more. Whether its rollouts were cut short."""
        self._enter(Stage.SAMPLES_NO_MORE)
        return self._cut_short

    def missing(self) -> list[int] | None:
        """The ranks that still sample; None if that cannot be known now."""
        return self._board.missing(self._mark(Stage.SAMPLES_NO_MORE))

    def _reached(self, stage: Stage) -> bool:
        """Whether enough ranks have."""
        return self._board.reached(self._mark(stage)) >= self._enough

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._board.mark(self._rank, self._mark(stage))

    def _mark(self, stage: Stage) -> int:
        return len(Stage) * self.iteration + stage

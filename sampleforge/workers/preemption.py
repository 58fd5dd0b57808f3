"""Preemption: ends the rollouts of slow ranks early, so that no rank waits long for another
(DD-PPO, arXiv 1911.00357)."""

from __future__ import annotations

import math
from enum import IntEnum
from time import perf_counter

from sampleforge.peers.boards import Board

STALE = 0.05
"""Largest ratio of the board's latency to the duration of a round at which an early rank goes on
sampling. In shorter rounds it would learn too late that the other ranks have complete rollouts."""


class Stage(IntEnum):
    """The progress of a rank in an iteration. With the iteration's number it is the rank's mark on
    the board."""

    SAMPLING = 0
    LAST_STEP = 1
    """The next steps complete the rollouts."""
    HAS_STEPS = 2
    STOPPED = 3


class Preemption:
    """Decides when the rollouts of ``rank`` end: after ``t`` steps, once ``sync_fraction`` of the
    ranks have complete rollouts of ``rollout`` steps, and t is at least ``min_rollout_fraction`` of
    ``rollout``.

    An early rank goes on sampling as far as its slots have room. (In the paper it waits; for equal
    ranks with uneven steps this is half of all waiting.) But it begins no further step when
    ``sync_fraction`` of the ranks are in their last one, because they would have to wait for it.

    ``at_once`` steps are taken together. ``iteration`` counts iterations (rollouts and an update)
    from 1. Marks include it, so that a rank that is ahead is not confused with ranks in another
    iteration.
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
        """Begin the rollouts of ``iteration``, for the first time or again after a rank was
        lost."""
        self._cut_short = False
        self._began = perf_counter()
        self._enter(Stage.SAMPLING)

    def forget(self) -> None:
        """Reset this rank's mark, before it joins the other ranks: if no rank has survived,
        iterations count from 1 again."""
        self._board.mark(self._rank, 0)

    def ends(self, t: int) -> bool:
        """Return whether the rollouts end now; all of them have at least ``t`` steps."""
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
        """Record that this rank has stopped sampling; return whether its rollouts were cut
        short."""
        self._enter(Stage.STOPPED)
        return self._cut_short

    def missing(self) -> list[int] | None:
        """Return the ranks that are still sampling; None if that cannot be known now."""
        return self._board.missing(self._mark(Stage.STOPPED))

    def _reached(self, stage: Stage) -> bool:
        """Return whether enough ranks have reached ``stage``."""
        return self._board.reached(self._mark(stage)) >= self._enough

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._board.mark(self._rank, self._mark(stage))

    def _mark(self, stage: Stage) -> int:
        return len(Stage) * self.iteration + stage

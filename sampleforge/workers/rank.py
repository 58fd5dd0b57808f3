"""The rank worker: an actor and a learner in one process, one of several that learn the same
policy."""

from __future__ import annotations

import math
from enum import IntEnum
from time import perf_counter
from typing import Any

from sampleforge.peers.boards import Board
from sampleforge.peers.group import RankLost
from sampleforge.rollouts.batch import SlotBatches
from sampleforge.shared.events import EventList
from sampleforge.shared.staging import begin_on
from sampleforge.workers.actor import END_RECORDING, ActorWorker
from sampleforge.workers.group_member import POLL_INTERVAL, GroupMember
from sampleforge.workers.learner import LearnerSettings, LearnerWorker
from sampleforge.workers.learner_change import LOAD

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
    """Ends the rollouts of slow ranks early, so that no rank waits long for another (DD-PPO, arXiv
    1911.00357): those of ``rank`` end after ``t`` steps, once ``sync_fraction`` of the
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


class RankWorker:
    """Repeats an iteration: samples a rollout of every split, and learns from these together with
    the other ranks.

    The actor and the learner worker are those of other topologies: the slots of this rank circulate
    between them, and the actor acts with the weights that the learner publishes. ``member`` joins
    the other ranks, again when a rank was replaced. All ranks end after the same update: the first
    one after which a rank has reached the stop condition.
    """

    def __init__(
        self,
        member: GroupMember,
        actor: ActorWorker,
        batches: SlotBatches,
        settings: LearnerSettings,
        preemption: Preemption,
    ) -> None:
        self._index = member.index
        self.name = f"rank {self._index}"
        self._member = member
        self._actor = actor
        actor.name = self.name  # used in the actor's messages
        self._batches = batches
        self._settings = settings
        self._exchange = batches.exchange
        self._counters = settings.post.progress.counters
        self._wakeup = settings.post.wakeup
        self._preemption = preemption
        self._knows_waits = True

    @property
    def events(self) -> EventList:
        """See `GroupMember.events`."""
        return self._member.events

    def recover(self) -> None:
        """Drop the rollouts of the previous life, which the group samples again."""
        self._exchange.reset()
        self._preemption.forget()

    def start(self) -> None:
        begin_on(self._batches.device)  # before anything of the actor or the learner is on it
        self._actor.start()
        self._count = self._counters.row(self._index)
        learner = self._member.start()
        self._worker = LearnerWorker(
            lambda: learner,
            self._batches,
            self._settings,
            after_update=self._complete_iteration,
        )
        self._worker.start()
        self._member.take_over()
        self._begin_iteration()

    def step(self) -> bool:
        """Take one env step of every split, and one update when all rollouts are complete."""
        if self._member.ended:
            return False
        try:
            if self._member.must_regroup:
                self._member.regroup()
                self._preemption.iteration = self._member.iteration
            moved = self._actor.step()
            if self._sampling and self._actor.idle:
                self._finish_rollouts()
            self._count["heartbeat"][0] = math.inf  # an update has no limit but the ranks' timeout
            moved = self._worker.step() or moved
        except RankLost as error:
            self._abandon()
            self._member.wait_for_replacement(error, lambda: f"; {self._missing_ranks()}")
            return True
        self._count["heartbeat"][0] = self._actor.alive_at()
        return moved

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        try:
            self._actor.close()
        finally:
            self._member.close()

    @property
    def ended(self) -> bool:
        """Whether all ranks have agreed that they are done."""
        return self._member.ended

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; see `LearnerWorker.handle`. "load": see
        `GroupMember.change`. "end_recording": see `ActorWorker.end_recording`."""
        if kind == END_RECORDING:
            return self._actor.end_recording()  # the rank goes on: others may wait for it
        if kind == LOAD:
            return self._member.change(payload)
        if kind == "finish" and not self._member.ended:
            return None  # another update may follow, after which all ranks agree to end
        if kind == "save":
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        answer = self._worker.handle(kind, payload)
        return {**answer, **self._rank_counters()} if kind == "metrics" else answer

    def _rank_counters(self) -> dict[str, float]:
        """Return counters of every rank since the run began, by name, as far as they are known."""
        names = {"steps": "trained_steps", "rollout_s": "", "wait_s": "", "preempted": ""}
        if not self._knows_waits:
            del names["wait_s"]
        return {
            f"rank{rank}_{name}": float(value)
            for name, column in names.items()
            for rank, value in enumerate(self._counters.column(column or name))
        }

    def _abandon(self) -> None:
        """Drop all rollouts that were handed over, and sample them again."""
        self._worker.abandon()
        while (slot := self._exchange.take_ready()) is not None:
            self._exchange.give_back(slot)
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._preemption.iteration = self._member.iteration
        self._preemption.begin()
        self._sampling = True
        self._began = perf_counter()

    def _finish_rollouts(self) -> None:
        """Record that all rollouts of this rank are complete."""
        self._count["preempted"] += self._preemption.finish()
        self._sampling = False
        self._count["rollout_s"] += perf_counter() - self._began

    def _missing_ranks(self) -> str:
        """Return a text that names the ranks that are still sampling. The board knows them only
        once this rank has stopped sampling."""
        missing = self._preemption.missing()
        if missing is None:
            return "it is not known which, because their store does not answer either"
        if missing and self._index not in missing:
            return f"still sampling, stopped or dead: rank {', '.join(map(str, missing))}"
        return "all ranks had complete rollouts"

    def _complete_iteration(self) -> None:
        """Agree with the other ranks on the update, and begin the next iteration."""
        self._member.agree()
        waited = self._member.take_waited()
        self._knows_waits = not math.isnan(waited)
        if self._knows_waits:
            self._count["wait_s"] += waited
        self._begin_iteration()

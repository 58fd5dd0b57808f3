"""The rank worker: an actor and a learner in one process, one of several that learn the same
policy."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

from sampleforge.peers.group import RankLost
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.shared.counters import Counters
from sampleforge.workers.actor import END_RECORDING, ActorWorker
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.learner import LearnerSettings, LearnerWorker
from sampleforge.workers.learner_change import LOAD
from sampleforge.workers.preemption import Preemption

POLL_INTERVAL = 0.05
"""Seconds between the checks of a waiting rank on the progress of the other ranks."""


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
        counters: Counters,
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
        self._counters = counters
        self._wakeup = settings.wakeup
        self._preemption = preemption

    def recover(self) -> None:
        """Drop the rollouts of the previous life, which the group samples again."""
        self._exchange.reset()
        self._preemption.forget()

    def start(self) -> None:
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
        `GroupMember.load`. "end_recording": see `ActorWorker.handle`."""
        if kind == END_RECORDING:
            return self._actor.handle(kind, payload)
        if kind == LOAD:
            return self._member.load(payload)
        if kind == "finish" and not self._member.ended:
            return None  # another update may follow, after which all ranks agree to end
        if kind == "save":
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        answer = self._worker.handle(kind, payload)
        return {**answer, **self._rank_counters()} if kind == "metrics" else answer

    def _rank_counters(self) -> dict[str, float]:
        """Return counters of every rank since the run began, by name."""
        names = {"steps": "trained_steps", "rollout_s": "", "wait_s": "", "preempted": ""}
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
        self._count["wait_s"] += self._member.take_waited()
        self._begin_iteration()

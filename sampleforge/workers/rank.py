"""The rank worker: an actor and a learner in one process, one of several that learn the same
policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import torch

from sampleforge.algos.averaging import Averaging, DataParallel
from sampleforge.algos.learner import Learner
from sampleforge.distributed.group import RankGroup, RankLost
from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.counters import Progress
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.learner import LearnerWorker
from sampleforge.workers.preemption import Preemption
from sampleforge.workers.rank_sync import MetricsSync, check_same_state, share_state
from sampleforge.workers.worker import StopFlag

POLL_INTERVAL = 0.05
"""Seconds between the checks of a waiting rank on the progress of the other ranks."""
REPLACED_WITHIN = 5.0
"""Seconds within which the driver replaces a rank that has died, if it does so at all."""
SNAPSHOT_SHARE = 0.01
"""Largest fraction of rank 0's time that publishing its state may take."""


class StateLost(RuntimeError):
    """After a restart the ranks hold an older state than the snapshot that was stored for them."""


class RankWorker:
    """Repeats an iteration: samples a rollout of every split, and learns from these together with
    the other ranks.

    The actor and the learner worker are those of other topologies: the slots of this rank circulate
    between them, and the actor acts with the weights that the learner publishes. ``join`` joins the
    other ranks, also again when a rank was replaced. All ranks end after the same update, the first
    one after which a rank finds the progress done. ``metrics_sync`` is needed if the ranks share no
    memory. ``snapshot`` holds a recent state of rank 0: if no rank survives, the new ranks resume
    from it.
    """

    def __init__(
        self,
        index: int,
        join: Callable[[int], RankGroup],
        actor: ActorWorker,
        new_learner: Callable[[Averaging], Learner],
        new_learner_worker: Callable[[Callable[[], Learner]], LearnerWorker],
        exchange: SlotExchange,
        weights: SharedWeights,
        progress: Progress,
        wakeup: Wakeup,
        stop: StopFlag,
        preemption: Preemption,
        group_epoch: GroupEpoch,
        *,
        debug: bool,
        metrics_sync: MetricsSync | None = None,
        snapshot: StateSnapshot | None = None,
        replaced_within: float = REPLACED_WITHIN,
    ) -> None:
        self.name = f"rank {index}"
        self._index = index
        self._join = join
        self._actor = actor
        actor.name = self.name  # used in the actor's messages
        self._new_learner = new_learner
        self._new_learner_worker = new_learner_worker
        self._exchange = exchange
        self._weights = weights
        self._progress = progress
        self._wakeup = wakeup
        self._stop = stop
        self._preemption = preemption
        self._group_epoch = group_epoch
        self._debug = debug
        self._metrics_sync = metrics_sync
        self._snapshot = snapshot
        self._published_at = self._publishing_took = 0.0
        self._replaced_within = replaced_within
        self._ended = False
        self._group: RankGroup | None = None

    def recover(self) -> None:
        """Drop the rollouts of the previous life, which the group samples again."""
        self._exchange.reset()
        self._preemption.forget()

    def start(self) -> None:
        self._actor.start()
        self._count = self._progress.counters.row(self._index)
        self._count["heartbeat"][0] = math.inf  # from here on it waits for other ranks
        self._generation = self._group_epoch.generation
        self._count["restarts"] += min(1, self._generation)  # this is a replacement
        self._group = self._meet()
        self._averaging = DataParallel(self._group)
        self._learner = self._new_learner(self._averaging)
        if self._snapshot is not None and self._snapshot.version > self._learner.version:
            self._learner.load(*self._snapshot.read())
        self._worker = self._new_learner_worker(lambda: self._learner)
        self._worker.start()
        self._batches = self._worker.batches
        self._take_over_with_all()
        self._begin_iteration()

    def _meet(self) -> RankGroup:
        """Join the newest group, or a newer one if another rank is replaced meanwhile. Raises
        RankLost if no group is formed."""
        while True:
            self._generation = self._group_epoch.generation
            try:
                return self._join(self._generation)
            except RankLost:
                if not self._is_regrouped():
                    raise

    def _take_over_with_all(self) -> None:
        """Call `_take_over` in a starting rank, again if another rank is replaced meanwhile."""
        while not self._ended:
            try:
                return self._take_over()
            except RankLost:
                if not self._stop_or_new_group():
                    raise
                if not self._ended:
                    self._group = self._averaging.group = self._meet()

    def step(self) -> bool:
        """Take one env step of every split, and one update when all rollouts are complete."""
        if self._ended:
            return False
        try:
            if self._group_epoch.generation != self._generation:
                self._regroup()
            moved = self._actor.step()
            if self._sampling and self._actor.idle:
                self._finish_rollouts()
            self._count["heartbeat"][0] = math.inf  # an update has no limit but the ranks' timeout
            moved = self._worker.step() or moved
            if self._worker.batches != self._batches:
                self._agree()
        except RankLost as error:
            self._abandon()
            if self._stop_or_new_group():
                return True
            raise RankLost(f"{error}; {self._missing_ranks()}") from error
        self._count["heartbeat"][0] = self._actor.alive_at()
        return moved

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        self._actor.close()
        if self._group is not None:
            self._group.close()

    @property
    def ended(self) -> bool:
        """Whether all ranks have agreed that they are done."""
        return self._ended

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; see `LearnerWorker.handle`."""
        if kind == "save":
            self._publish_state()  # so that the snapshot is never older than a checkpoint
        answer = self._worker.handle(kind, payload)
        return {**answer, **self._of_each_rank()} if kind == "metrics" else answer

    def _end(self, ended: bool) -> None:
        self._ended = ended
        self._count["ended"][0] = ended

    def _of_each_rank(self) -> dict[str, float]:
        """Return counters of every rank since the run began, by name."""
        names = {"steps": "trained_steps", "rollout_s": "", "wait_s": "", "preempted": ""}
        counters = self._progress.counters
        return {
            f"rank{rank}_{name}": float(value)
            for name, column in names.items()
            for rank, value in enumerate(counters.column(column or name))
        }

    def _stop_or_new_group(self) -> bool:
        """Return, after a rank was lost, whether there is a new group, or the run has ended, so
        that the other ranks have left regularly."""
        if self._is_regrouped():
            return True
        if self._stop.is_set():
            self._end(True)
        return self._ended

    def _is_regrouped(self) -> bool:
        """Return whether the driver has replaced a rank, waiting for it up to ``replaced_within``
        seconds."""
        give_up_at = perf_counter() + self._replaced_within
        while self._group_epoch.generation == self._generation:
            if self._stop.is_set() or perf_counter() > give_up_at:
                return False
            sleep(0.02)
        return True

    def _regroup(self) -> None:
        """Join the new group, in which the rank with the most gradient steps gives its state to all
        ranks."""
        assert self._group is not None
        self._count["heartbeat"][0] = math.inf
        self._group.close()
        self._generation = self._group_epoch.generation
        self._group = self._averaging.group = self._join(self._generation)
        self._take_over()

    def _take_over(self) -> None:
        """Give all ranks the state of the rank with the most gradient steps. All ranks have agreed
        on each of these steps, because a step comes after a complete all-reduce of gradients.
        Raises StateLost if no rank is as far as the snapshot."""
        assert self._group is not None
        own = (self._learner.version, self._preemption.iteration, self._progress.done)
        versions, iterations, done = self._group.all_gather(torch.tensor(own)).T.tolist()
        self._end(any(done))  # like a resumed run that has already reached its limit
        newest, agreed = int(max(versions)), self._group_epoch.agreed_version
        self._check_against_snapshot(newest)
        share_state(self._learner, self._group, source=versions.index(max(versions)))
        self._preemption.iteration = int(max(iterations))
        # After all ranks have read the version that was agreed on before:
        self._group_epoch.set_agreed_version(self._index, self._learner.version)
        self._weights.publish(self._learner.model.state_dict(), self._learner.version)
        if self._index == 0:
            self._publish_state()
            if self._generation:
                self._group_epoch.report_resumed(newest, max(0, agreed - newest))

    def _check_against_snapshot(self, newest: int) -> None:
        stored = -1 if self._snapshot is None else self._snapshot.version
        if newest < stored:
            raise StateLost(
                f"after a rank was replaced, the ranks hold the weights of update {newest}, but "
                f"those of update {stored} were stored for them; start the same command again: it "
                "resumes from the newest checkpoint"
            )

    def _publish_state(self) -> None:
        """Publish the whole state in the snapshot, for the case that no rank survives."""
        if self._snapshot is None:
            return
        started = perf_counter()
        self._snapshot.publish(*self._learner.state())
        self._published_at = perf_counter()
        self._publishing_took = self._published_at - started
        self._count["publish_s"] += self._publishing_took

    def _publishing_is_due(self) -> bool:
        """Return whether enough time has passed for publishing to stay within `SNAPSHOT_SHARE`."""
        passed = perf_counter() - self._published_at
        return self._index == 0 and passed * SNAPSHOT_SHARE >= self._publishing_took

    def _abandon(self) -> None:
        """Drop all rollouts that were handed over, and sample them again."""
        self._worker.abandon()
        while (slot := self._exchange.take_ready()) is not None:
            self._exchange.give_back(slot)
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._preemption.begin()
        self._sampling = True
        self._began = perf_counter()

    def _finish_rollouts(self) -> None:
        """Record that all rollouts of this rank are complete."""
        self._count["preempted"] += self._preemption.finish()
        self._sampling = False
        self._count["rollout_s"] += perf_counter() - self._began

    def _missing_ranks(self) -> str:
        """Return a text that names the ranks that are still sampling, as far as the board knows. It
        knows nothing if this rank is sampling itself."""
        missing = self._preemption.missing()
        if missing is None:
            return "it is not known which, because their store does not answer either"
        if missing and self._index not in missing:
            return f"still sampling, stopped or dead: rank {', '.join(map(str, missing))}"
        return "all ranks had complete rollouts"

    def _agree(self) -> None:
        """Complete an iteration together with the other ranks: exchange metrics, decide whether to
        end, and, with --debug, compare states."""
        assert self._group is not None
        self._batches = self._worker.batches
        self._group_epoch.set_agreed_version(self._index, self._learner.version)
        if self._publishing_is_due():
            self._publish_state()
        self._preemption.iteration += 1
        if self._metrics_sync is not None:
            self._metrics_sync.exchange(self._group)
        self._end(bool(self._group.all_gather(torch.tensor([float(self._progress.done)])).any()))
        if self._debug:
            check_same_state(self._learner, self._group)
            self._count["checksums_compared"] += self._index == 0  # one rank counts for all
        self._count["wait_s"] += self._group.waited
        self._group.waited = 0.0
        self._begin_iteration()

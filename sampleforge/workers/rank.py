"""A rank: an actor and a learner in one process, one of several that learn the same policy."""

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

LOOK = 0.05
"""Seconds between two looks at who has finished, while this rank waits for its environments."""
REPLACED_WITHIN = 5.0
"""Seconds within which the driver replaces a rank that died, or never."""
SNAPSHOT_SHARE = 0.01
"""Part of rank 0's time that publishing its state may take."""


class StateLost(RuntimeError):
    """New ranks hold an older state than the one that was kept for them."""


class RankWorker:
    """Samples a rollout of every split, learns from them together with the other ranks, and again.

    The actor and the learner worker are those of other topologies: the slots of this rank go round
    between the two, and what the learner publishes, the actor acts with. ``join`` meets the other
    ranks, and does so again when one of them was replaced. All end after the same update, the first
    at which one of them finds the progress done.
    ``metrics_sync`` are kept where the ranks have no common memory. ``snapshot`` holds the state of
    rank 0 as it was a moment ago: where no rank survives, their successors go on from that.
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
        actor.name = self.name  # in what it reports
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
        """The predecessor's rollouts are dropped: its group samples them again."""
        self._exchange.reset()
        self._preemption.forget()

    def start(self) -> None:
        self._actor.start()
        self._count = self._progress.counters.row(self._index)
        self._count["heartbeat"][0] = math.inf  # from here on others are waited for
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
        """Join the newest group. Another rank may be replaced meanwhile: there is a newer one then.
        Raises RankLost if none is formed."""
        while True:
            self._generation = self._group_epoch.generation
            try:
                return self._join(self._generation)
            except RankLost:
                if not self._is_regrouped():
                    raise

    def _take_over_with_all(self) -> None:
        """As `_take_over`, for a rank that starts, during which another one may be replaced."""
        while not self._ended:
            try:
                return self._take_over()
            except RankLost:
                if not self._stop_or_new_group():
                    raise
                if not self._ended:
                    self._group = self._averaging.group = self._meet()

    def step(self) -> bool:
        """One env step of every split, and, when all their rollouts are complete, one update."""
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
            raise RankLost(f"{error}; {self._whom_we_miss()}") from error
        self._count["heartbeat"][0] = self._actor.alive_at()
        return moved

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(min(timeout, LOOK))

    def close(self) -> None:
        self._actor.close()
        if self._group is not None:
            self._group.close()

    @property
    def ended(self) -> bool:
        """Whether all ranks have agreed that they are done."""
        return self._ended

    def handle(self, kind: str, payload: Any) -> Any:
        """Answer the driver; see `LearnerWorker.handle`."""
        if kind == "save":
            self._publish_state()  # so that it is never older than a checkpoint
        answer = self._worker.handle(kind, payload)
        return {**answer, **self._of_each_rank()} if kind == "metrics" else answer

    def _end(self, ended: bool) -> None:
        self._ended = ended
        self._count["ended"][0] = ended

    def _of_each_rank(self) -> dict[str, float]:
        """What every rank has done since the run began."""
        names = {"steps": "trained_steps", "rollout_s": "", "wait_s": "", "preempted": ""}
        counters = self._progress.counters
        return {
            f"rank{rank}_{name}": float(value)
            for name, column in names.items()
            for rank, value in enumerate(counters.column(column or name))
        }

    def _stop_or_new_group(self) -> bool:
        """After a loss: whether all is over, and the others have left as this rank was about to, or
        the driver replaces the lost one, which it notices within a moment."""
        if self._is_regrouped():
            return True
        if self._stop.is_set():
            self._end(True)
        return self._ended

    def _is_regrouped(self) -> bool:
        """Whether the driver has replaced a rank, or does so within a moment."""
        give_up_at = perf_counter() + self._replaced_within
        while self._group_epoch.generation == self._generation:
            if self._stop.is_set() or perf_counter() > give_up_at:
                return False
            sleep(0.02)
        return True

    def _regroup(self) -> None:
        """Join the new group. Whoever has learned most gives its state to all."""
        assert self._group is not None
        self._count["heartbeat"][0] = math.inf
        self._group.close()
        self._generation = self._group_epoch.generation
        self._group = self._averaging.group = self._join(self._generation)
        self._take_over()

    def _take_over(self) -> None:
        """Every rank's state becomes that of the one with the most gradient steps. Each step was
        agreed on by all: it came after a complete sum of gradients. Raises StateLost if none of
        them is as far as the snapshot."""
        assert self._group is not None
        own = (self._learner.version, self._preemption.iteration, self._progress.done)
        versions, iterations, done = self._group.gather(torch.tensor(own)).T.tolist()
        self._end(any(done))  # as a run that is resumed where it has already reached its limit
        newest, learned = int(max(versions)), self._group_epoch.learned
        self._check_against_snapshot(newest)
        share_state(self._learner, self._group, source=versions.index(max(versions)))
        self._preemption.iteration = int(max(iterations))
        # After all ranks have seen what was lost:
        self._group_epoch.learn(self._index, self._learner.version)
        self._weights.publish(self._learner.model.state_dict(), self._learner.version)
        if self._index == 0:
            self._publish_state()
            if self._generation:
                self._group_epoch.go_on(newest, max(0, learned - newest))

    def _check_against_snapshot(self, newest: int) -> None:
        kept = -1 if self._snapshot is None else self._snapshot.version
        if newest < kept:
            raise StateLost(
                f"after a rank was replaced, the ranks hold the weights of update {newest}, but "
                f"those of update {kept} were kept for them; start the same command again: it "
                "goes on from the newest checkpoint"
            )

    def _publish_state(self) -> None:
        """Keep the whole state for the case that no rank survives."""
        if self._snapshot is None:
            return
        started = perf_counter()
        self._snapshot.publish(*self._learner.state())
        self._published_at = perf_counter()
        self._publishing_took = self._published_at - started
        self._count["publish_s"] += self._publishing_took

    def _publishing_is_due(self) -> bool:
        """Whether so much time has passed that publishing stays within its share."""
        passed = perf_counter() - self._published_at
        return self._index == 0 and passed * SNAPSHOT_SHARE >= self._publishing_took

    def _abandon(self) -> None:
        """All that was handed over is sampled again."""
        self._worker.abandon()
        while (slot := self._exchange.take_ready()) is not None:
            self._exchange.give_back(slot)
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._preemption.begin()
        self._sampling = True
        self._began = perf_counter()

    def _finish_rollouts(self) -> None:
        """All rollouts are complete: the update may begin, and others need not wait."""
        self._count["preempted"] += self._preemption.finish()
        self._sampling = False
        self._count["rollout_s"] += perf_counter() - self._began

    def _whom_we_miss(self) -> str:
        """The board knows of rollouts only: once this rank's own next one is awaited, nothing."""
        missing = self._preemption.missing()
        if missing is None:
            return "nobody can say which: their store does not answer either"
        if missing and self._index not in missing:
            return f"still sampling, stopped or dead: rank {', '.join(map(str, missing))}"
        return "all had complete rollouts"

    def _agree(self) -> None:
        """After an update: whether to end is decided together, as all that happens to all."""
        assert self._group is not None
        self._batches = self._worker.batches
        self._group_epoch.learn(self._index, self._learner.version)
        if self._publishing_is_due():
            self._publish_state()
        self._preemption.iteration += 1
        if self._metrics_sync is not None:
            self._metrics_sync.exchange(self._group)
        self._end(bool(self._group.gather(torch.tensor([float(self._progress.done)])).any()))
        if self._debug:
            check_same_state(self._learner, self._group)
            self._count["checksums_compared"] += self._index == 0  # by all together: one counts
        self._count["wait_s"] += self._group.waited
        self._group.waited = 0.0
        self._begin_iteration()

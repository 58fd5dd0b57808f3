"""The learner worker, which learns from batch after batch and publishes newer weights; and the one
that does so in a group: it continues in a new process after its process was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algorithms.learning import Learner, release_when_due
from sampleforge.ops.running_stats import alone
from sampleforge.peers.group import RankLost
from sampleforge.rollouts.batch import Batches, Taken
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.staging import begin_on
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.group_member import POLL_INTERVAL, GroupMember
from sampleforge.workers.hooks import update_hooks
from sampleforge.workers.learner_change import LOAD, ChangeFollower
from sampleforge.workers.metrics import Divergence, ReportMetrics
from sampleforge.workers.worker import EventDriven, Post

Save = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner worker is told.

    ``save`` writes a checkpoint. ``weights``: None if another learner publishes them. They are
    published after an update if ``publish_interval`` env steps of all actors together have passed
    since the last time: for a small network, publishing each time would take as long as learning.
    ``counts_updates``: whether this worker counts the updates, whose number is the same for all
    learners. ``callbacks``: those with hooks in workers, if there are any.
    """

    post: Post
    save: Save
    weights: SharedWeights | None
    threads: int
    publish_interval: int = 0
    counts_updates: bool = True
    callbacks: WorkerCallbacks | None = None


def at_once() -> bool:
    """Return True: the update begins as soon as the batch is complete."""
    return True


class LearnerWorker(EventDriven):
    """Learns from each complete batch, and publishes the weights.

    Ranks, and the learners of one policy, take each gradient step together. ``may_update()``:
    called when the batch is complete, until it returns True; then the update begins. Meanwhile
    requests are answered. ``after_update`` is called when the weights of an update are published,
    before the batch is given back (None: no other process takes part in it).
    """

    def __init__(
        self,
        make_learner: Callable[[], Learner],
        batches: Batches,
        settings: LearnerSettings,
        may_update: Callable[[], bool] = at_once,
        after_update: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("learner", settings.post)
        self._make_learner = make_learner
        self._batches = batches
        self._settings = settings
        self._may_update = may_update
        self._after_update = after_update
        self._started = False

    def start(self) -> None:
        super().start()
        settings, device = self._settings, self._batches.device
        limit_threads(settings.threads)
        begin_on(device)
        self._learner = self._make_learner()
        self._tell_of_update = update_hooks(settings.callbacks)
        self._metrics = ReportMetrics()
        self._divergence = Divergence(self._count, counts=settings.counts_updates)
        averaging = self._learner.averaging
        gather = alone if averaging.solo else averaging.all_gather
        self._source = self._batches.source(
            self._wakeup, self._count, self._learner.version, gather
        )
        self._wakeup = self._source.wakeup
        self._taken: Taken | None = None
        self._finished = False
        self._published_at = 0  # env steps
        self._started = True

    def step(self) -> bool:
        moved = self._source.gather()
        if self._taken is None and not self._finished:
            self._taken = self._source.take(self._post.progress.fraction)
        if self._taken is None or not self._may_update():
            return moved
        started = perf_counter()
        batch = self._source.read(self._taken)
        self._count["batch_s"] += perf_counter() - started
        errors = None if batch is None else self._learn(batch, self._taken.progress)
        if self._after_update is None:
            release_when_due(self._learner, self._post.progress.env_steps)
        else:
            self._after_update()
        self._source.done(errors)
        self._taken = None
        return True

    def _learn(self, batch: Any, progress: float) -> npt.NDArray[np.float32] | None:
        """Learn from a batch, and publish the weights; return the errors of its items, if there
        are any."""
        started, before, settings = perf_counter(), self._learner.version, self._settings
        metrics, trained, errors = self._learner.update(batch, progress)
        learned = perf_counter()
        if settings.counts_updates:
            self._count["updates"][0] = self._learner.version
        self._divergence.check(metrics, self._learner.version - before, batch)
        env_steps = self._post.progress.env_steps
        if env_steps - self._published_at >= settings.publish_interval:
            self._published_at = env_steps
            self._publish()
        self._count["learn_s"] += learned - started
        self._count["publish_s"] += perf_counter() - learned
        self._count["trained_steps"] += trained
        if self._tell_of_update is not None:
            self._tell_of_update(self._learner, metrics)
        self._metrics.add(metrics)
        return errors

    def _publish(self) -> None:
        if self._settings.weights is not None:
            state = self._learner.model.state_dict()
            self._settings.weights.publish(state, self._learner.version)

    def begin_again(self) -> None:
        """Prepare for a new group of learners, which is formed next."""
        if not self._source.begin_again():
            self._taken = None

    def plain_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner's state, as values for JSON."""
        return self._source.plain_state()

    def abandon(self) -> None:
        """Drop the batch that is being learned from, and give back what is kept until an update:
        another learner was lost."""
        self._taken = None
        self._source.abandon()

    def close(self) -> None:
        if self._started:
            self._source.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver.

        "metrics" returns the `ReportMetrics` of the batches since the last request, and those of
        the source. "save" writes a checkpoint with the driver's plain state (``payload``) and
        returns None, or the text of the error. "finish" takes no batch any more; returns the
        version of the last weights, which have been published, or None while a batch is being
        learned from. "load" (see `ChangeRequest`) is for a learner that takes its steps alone."""
        if kind == "metrics":
            return self._metrics.take() | self._source.metrics()
        if kind == "finish":
            self._finished = True
            if self._taken is not None:
                return None
            if self._settings.publish_interval:  # the last weights may wait for it
                self._publish()
            return self._learner.version
        if kind == LOAD:
            changes = ChangeFollower()
            changes.ask(payload)
            changes.apply(self._learner, changes.due(self._learner))
            self._publish()
            return True
        assert kind == "save", kind
        tensors, plain = self._learner.state()
        try:
            self._settings.save(tensors, {**payload, "learner": {**plain, **self.plain_state()}})
        except (OSError, ValueError) as error:  # ValueError: a tensor that is not finite
            return f"{type(error).__name__}: {error}"
        return None


class ExperienceSink(EventDriven):
    """Replaces the learner if experience is only collected: it answers the driver, and gives every
    complete slot of ``exchange`` back to its actor (None: a replay keeps them)."""

    def __init__(self, post: Post, exchange: SlotExchange | None) -> None:
        super().__init__("sink", post)
        self._exchange = exchange

    def step(self) -> bool:
        slot = None if self._exchange is None else self._exchange.take_ready()
        if self._exchange is None or slot is None:
            return False
        self._exchange.give_back(slot)
        return True

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(timeout)  # not counted: nothing is learned that could be held up

    def handle(self, kind: str, payload: Any) -> Any:
        """Return empty metrics, or None for any other request: there is nothing to save."""
        return {} if kind == "metrics" else None


class GroupLearnerWorker:
    """One of the learners of a policy, or the only one. They take each gradient step together: each
    learns from its own share of the batch, and gradients are averaged.

    If a learner is replaced, the surviving learners drop the batch that they are learning from. All
    learners continue from the newest state of a survivor, or, if there is none, from the state in
    shared memory. ``batches``, ``settings``: see `LearnerWorker`. ``others``: the wake-ups of the
    other learners.
    """

    def __init__(
        self,
        name: str,
        member: GroupMember,
        batches: Batches,
        settings: LearnerSettings,
        others: Sequence[Wakeup] = (),
    ) -> None:
        self.name = name
        self._member = member
        self._batches = batches
        self._settings = settings
        self._others = others
        self._worker: LearnerWorker | None = None

    def recover(self) -> None:
        self._batches.take_over()

    def start(self) -> None:
        begin_on(self._batches.device)  # before the learner, which is made for its group
        learner = self._member.start()
        worker = LearnerWorker(
            lambda: learner,
            self._batches,
            self._settings,
            self._may_update,
            self._member.agree,
        )
        self._worker = worker
        worker.start()
        self._member.plain_state = worker.plain_state
        self._member.take_over()

    def step(self) -> bool:
        """Gather a part of a batch, or learn from a complete batch with the other learners."""
        worker = self._worker
        assert worker is not None
        try:
            if self._member.must_regroup:  # also at the end, so that a new learner can join
                worker.begin_again()
                self._member.regroup()
            return not self._member.ended and worker.step()
        except RankLost as error:
            worker.abandon()
            self._member.wait_for_replacement(error)
            return True

    def _may_update(self) -> bool:
        """Return whether all learners have their parts of the batch. If so, wake the other
        learners."""
        ready = self._member.has_batch()
        if ready:
            for wakeup in self._others:
                wakeup.set()
        return ready

    def wait(self, timeout: float) -> None:
        assert self._worker is not None
        self._worker.wait(min(timeout, POLL_INTERVAL))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._member.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver; see `LearnerWorker.handle`. "publish" makes
        the state in shared memory the newest one, and returns None. "load": see
        `GroupMember.change`."""
        assert self._worker is not None
        if kind == LOAD:
            return self._member.change(payload)
        if kind in ("save", "publish"):
            self._member.publish_state()  # so that the snapshot is never older than a checkpoint
        if kind == "publish":
            return None
        return self._worker.handle(kind, payload)

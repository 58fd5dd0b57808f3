"""The learner worker, which learns from complete slots and publishes newer weights."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch

from sampleforge.algos.learning import Learner
from sampleforge.rollouts.batch_source import Batches, BatchSource
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.learner_update import update_hooks
from sampleforge.workers.metrics import Divergence, ReportMetrics
from sampleforge.workers.state_load import REQUEST
from sampleforge.workers.worker import EventDriven

Save = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


class BatchLearner(Learner, Protocol):
    """A learner that takes batch after batch: `PpoLearner`, `MarwilLearner`."""

    def update(self, batch: Any, progress: float) -> dict[str, float]: ...


def at_once() -> bool:
    """Return True: the update begins as soon as the batch is complete."""
    return True


def do_nothing() -> None:
    """Do nothing after an update: no other process takes part in it."""


class LearnerWorker(EventDriven):
    """Learns from each complete batch, and publishes the weights.

    Ranks, and the learners of one policy, take each gradient step together. ``weights``: None if
    another learner publishes them. ``counts_updates``: whether this worker counts the updates,
    whose number is the same for all learners. ``may_update()``: called when the batch is complete,
    until it returns True; then the update begins. Meanwhile requests are answered. ``after_update``
    is called when the weights of an update are published, before slots are given back.
    ``callbacks``: those with hooks in workers, if there are any.
    """

    name = "learner"

    def __init__(
        self,
        make_learner: Callable[[], BatchLearner],
        batches: Batches,
        weights: SharedWeights | None,
        progress: Progress,
        save: Save,
        wakeup: Wakeup,
        counter_row: int,
        *,
        threads: int,
        counts_updates: bool = True,
        may_update: Callable[[], bool] = at_once,
        after_update: Callable[[], None] = do_nothing,
        callbacks: WorkerCallbacks | None = None,
    ) -> None:
        self._make_learner = make_learner
        self.batches = batches
        self._weights = weights
        self._progress = progress
        self._save = save
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._threads = threads
        self._batch_source: BatchSource | None = None
        self._counts_updates = counts_updates
        self._may_update = may_update
        self._after_update = after_update
        self._callbacks = callbacks
        self._batch: Any = None
        self._finished = False

    def start(self) -> None:
        limit_threads(self._threads)
        device = self.batches.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # page-locking would open a context on cuda:0 too
        self._learner = self._make_learner()
        self._tell_of_update = update_hooks(self._callbacks)
        self._metrics = ReportMetrics()
        self._count = self._progress.counters.row(self._counter_row)
        self._divergence = Divergence(self._count, counts=self._counts_updates)
        self._batch_source = self.batches.source(self._wakeup, self._count, self._learner.version)
        self._wakeup = self._batch_source.wakeup

    def step(self) -> bool:
        assert self._batch_source is not None
        moved = False
        if self._batch is None and not self._finished:
            moved = self._batch_source.gather()
            self._batch = self._batch_source.take()
        if self._batch is None or not self._may_update():
            return moved
        self._learn(self._batch)
        self._batch_source.done()
        self._batch = None
        return True

    def _learn(self, batch: Any) -> None:
        started, before = perf_counter(), self._learner.version
        metrics = self._learner.update(batch, self._progress.fraction)
        learned = perf_counter()
        steps = self._learner.version - before
        if self._counts_updates:
            self._count["updates"][0] = self._learner.version
        self._divergence.check(metrics, steps, batch)
        if self._weights is not None:
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)
        self._count["learn_s"] += learned - started
        self._count["publish_s"] += perf_counter() - learned
        self._count["trained_steps"] += metrics.pop("own_trained_steps")
        if self._tell_of_update is not None:
            self._tell_of_update(self._learner, metrics)
        self._metrics.add(metrics)
        self._after_update()

    def begin_again(self) -> None:
        """Do nothing before a new group of learners is formed: what was gathered is kept."""

    def plain_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner's state: nothing."""
        return {}

    def abandon(self) -> None:
        """Drop the batch that is being learned from, and give back the slots that are kept until an
        update."""
        assert self._batch_source is not None
        self._batch = None
        self._batch_source.abandon()

    def close(self) -> None:
        if self._batch_source is not None:
            self._batch_source.close()

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver.

        "metrics" returns the `ReportMetrics` of the batches since the last request. "save" writes a
        checkpoint with the driver's plain state (``payload``) and returns None, or the text of the
        error. "finish" takes no batch any more; returns the version of the last weights, which have
        been published, or None while a batch is being learned from. "load" (see `StateLoad`) is for
        a learner that takes its steps alone."""
        if kind == "metrics":
            return self._metrics.take()
        if kind == "finish":
            self._finished = True
            return None if self._batch is not None else self._learner.version
        if kind == REQUEST:
            payload.read().put_into(self._learner)
            if self._weights is not None:
                self._weights.publish(self._learner.model.state_dict(), self._learner.version)
            return True
        assert kind == "save", kind
        tensors, plain = self._learner.state()
        try:
            self._save(tensors, {**payload, "learner": plain})
        except (OSError, ValueError) as error:  # ValueError: a tensor that is not finite
            return f"{type(error).__name__}: {error}"
        return None


class NoLearner(EventDriven):
    """Replaces the learner if experience is only collected. It only answers the driver."""

    name = "sink"

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup

    def start(self) -> None:
        pass

    def step(self) -> bool:
        return False

    def wait(self, timeout: float) -> None:
        self._wakeup.wait(timeout)

    def handle(self, kind: str, payload: Any) -> Any:
        """Return empty metrics, or None for any other request: there is nothing to save."""
        return {} if kind == "metrics" else None


class ExperienceSink(NoLearner):
    """A `NoLearner` that gives every complete slot back to its actor."""

    def __init__(self, exchange: SlotExchange, wakeup: Wakeup) -> None:
        super().__init__(wakeup)
        self._exchange = exchange

    def step(self) -> bool:
        slot = self._exchange.take_ready()
        if slot is None:
            return False
        self._exchange.give_back(slot)
        return True

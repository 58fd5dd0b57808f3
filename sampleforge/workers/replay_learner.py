"""The learner worker of Ape-X, which learns from samples of the replay and returns priorities."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from sampleforge.algos.dqn_learner import DqnLearner
from sampleforge.replay.exchange import SampleRelay
from sampleforge.replay.sample_source import ReadySample, SampleSource
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.learner import Save, at_once, do_nothing
from sampleforge.workers.learner_update import update_hooks
from sampleforge.workers.metrics import Divergence, ReportMetrics
from sampleforge.workers.replay_metrics import ReplayMetrics
from sampleforge.workers.sample_update import SampleUpdate
from sampleforge.workers.state_load import REQUEST
from sampleforge.workers.worker import EventDriven


class NextUpdate(NamedTuple):
    """The sample to learn from, and the fraction (0 to 1) of the training that was done when it was
    chosen."""

    sample: ReadySample
    progress: float


class ReplayLearnerWorker(EventDriven):
    """Learns from each sample of ``source``, returns its TD errors, and publishes the weights every
    ``publish_interval`` env steps of all actors together.

    With several learners this is learner 0, and ``relay`` sends its samples to the other learners.
    ``may_update``, ``after_update`` and ``callbacks``: see
    `sampleforge.workers.learner.LearnerWorker`.
    """

    name = "learner"

    def __init__(
        self,
        make_learner: Callable[[], DqnLearner],
        make_update: Callable[[DqnLearner], SampleUpdate],
        source: SampleSource,
        weights: SharedWeights,
        progress: Progress,
        save: Save,
        wakeup: Wakeup,
        counter_row: int,
        replay_metrics: ReplayMetrics,
        relay: SampleRelay | None = None,
        *,
        publish_interval: int,
        threads: int,
        may_update: Callable[[], bool] = at_once,
        after_update: Callable[[], None] = do_nothing,
        callbacks: WorkerCallbacks | None = None,
    ) -> None:
        self._make_learner = make_learner
        self._make_update = make_update
        self._source = source
        self._weights = weights
        self._progress = progress
        self._save = save
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._replay_metrics = replay_metrics
        self._relay = relay
        self._publish_interval = publish_interval
        self._threads = threads
        self._may_update = may_update
        self._after_update = after_update
        self._callbacks = callbacks

    def start(self) -> None:
        limit_threads(self._threads)
        self._tell_of_update = update_hooks(self._callbacks)
        self._learner = self._make_learner()
        self._update = self._make_update(self._learner)
        self._count = self._progress.counters.row(self._counter_row)
        self._source.start(life=int(self._count["restarts"][0]))
        self._replay_metrics.start()
        self._divergence = Divergence(self._count, counts=True)
        self._metrics = ReportMetrics()
        self._published_at = 0  # env steps
        self._next: NextUpdate | None = None
        self._finished = False
        self.begin_again()

    def step(self) -> bool:
        moved = self._source.gather()
        if self._next is None and not self._finished and (sample := self._source.take()):
            self._next = NextUpdate(sample, self._progress.fraction)
            if self._relay is not None:
                self._relay.send(sample.request, self._next.progress)
        if self._next is None or not self._may_update():
            return moved
        self._learn(*self._next)
        return True

    def _learn(self, sample: ReadySample, progress: float) -> None:
        started = perf_counter()
        updated = self._update(sample.request, progress)
        self._next = None  # before the request goes back, which `begin_again` must not repeat
        if updated is None:
            self._replay_metrics.add_late(self._source.batch)
            self._source.done(sample, None)
            self._after_update()
            return
        learned = perf_counter()
        self._replay_metrics.add_late(updated.late)
        self._count["updates"][0] = self._learner.version
        self._divergence.check(updated.metrics, 1, updated.batch)
        self._source.done(sample, updated.errors)
        self._publish()
        self._count["batch_s"] += updated.read_s
        self._count["learn_s"] += learned - started - updated.read_s
        self._count["publish_s"] += perf_counter() - learned
        self._count["trained_steps"] += updated.trained
        if self._tell_of_update is not None:
            self._tell_of_update(self._learner, updated.metrics)
        self._metrics.add(updated.metrics)
        self._after_update()

    def _publish(self) -> None:
        """Publish the weights if ``publish_interval`` env steps have passed since the last time.
        For a small network, publishing after every update would take as long as learning."""
        env_steps = self._progress.env_steps
        if env_steps - self._published_at >= self._publish_interval:
            self._published_at = env_steps
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)

    def begin_again(self) -> None:
        """Drop the sample that was chosen, before a new group of learners is formed."""
        if self._next is not None:
            self._source.done(self._next.sample, None)
            self._next = None
        if self._relay is not None:
            self._relay.forget()

    def abandon(self) -> None:
        """Do nothing: `begin_again` follows."""

    def plain_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the learner's state, as values for JSON."""
        return {
            "limiter": self._source.limiter.state(),
            "shard_choice": self._source.shard_choice,
        }

    def handle(self, kind: str, payload: Any) -> Any:
        """Return the answer to a request of the driver, like
        `sampleforge.workers.learner.LearnerWorker.handle`."""
        if kind == "metrics":
            return self._metrics.take() | self._replay_metrics.take()
        if kind == "finish":
            self._finished = True
            if self._next is not None:
                return None
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)
            return self._learner.version
        if kind == REQUEST:
            payload.read().put_into(self._learner)
            self._weights.publish(self._learner.model.state_dict(), self._learner.version)
            return True
        assert kind == "save", kind
        tensors, plain = self._learner.state()
        try:
            self._save(tensors, {**payload, "learner": {**plain, **self.plain_state()}})
        except (OSError, ValueError) as error:  # ValueError: a tensor that is not finite
            return f"{type(error).__name__}: {error}"
        return None

"""The worker of each learner but the first, if several learn one Q-network together."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from sampleforge.algos.dqn_learner import DqnLearner
from sampleforge.replay.exchange import SampleRelay
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.learner import at_once, do_nothing
from sampleforge.workers.learner_update import update_hooks
from sampleforge.workers.sample_update import SampleUpdate
from sampleforge.workers.worker import EventDriven


class ReplayFollowerWorker(EventDriven):
    """Learns from its part of each sample that learner 0 has chosen, in the same order.

    Learner 0 alone requests samples, returns priorities, publishes the weights and saves.
    ``index``: number of this learner.
    """

    name = "learner"

    def __init__(
        self,
        make_learner: Callable[[], DqnLearner],
        make_update: Callable[[DqnLearner], SampleUpdate],
        index: int,
        relay: SampleRelay,
        progress: Progress,
        wakeup: Wakeup,
        counter_row: int,
        *,
        threads: int,
        may_update: Callable[[], bool] = at_once,
        after_update: Callable[[], None] = do_nothing,
        callbacks: WorkerCallbacks | None = None,
    ) -> None:
        self._make_learner = make_learner
        self._make_update = make_update
        self._index = index
        self._relay = relay
        self._progress = progress
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._threads = threads
        self._may_update = may_update
        self._after_update = after_update
        self._callbacks = callbacks

    def start(self) -> None:
        limit_threads(self._threads)
        self._tell_of_update = update_hooks(self._callbacks)
        self._next: tuple[int, float] | None = None
        self.begin_again()
        self._count = self._progress.counters.row(self._counter_row)
        self._learner = self._make_learner()
        self._update = self._make_update(self._learner)

    def step(self) -> bool:
        if self._next is None:
            self._next = self._relay.take(self._index)
        if self._next is None or not self._may_update():
            return False
        started = perf_counter()
        updated = self._update(*self._next)
        self._next = None
        if updated is not None:
            self._count["batch_s"] += updated.read_s
            self._count["learn_s"] += perf_counter() - started - updated.read_s
            self._count["trained_steps"] += updated.trained
            if self._tell_of_update is not None:
                self._tell_of_update(self._learner, updated.metrics)
        self._after_update()
        return True

    def begin_again(self) -> None:
        """Drop the sample that was chosen, before a new group of learners is formed."""
        self._next = None
        while self._relay.take(self._index) is not None:
            pass  # of the group before

    def abandon(self) -> None:
        """Do nothing: `begin_again` follows."""

    def plain_state(self) -> dict[str, object]:
        """Return nothing: learner 0 alone writes checkpoints."""
        return {}

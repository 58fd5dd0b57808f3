"""The worker of each learner but the first, if several learn one Q-network together."""

from __future__ import annotations

from time import perf_counter

from sampleforge.distributed.group import RankLost
from sampleforge.replay.exchange import SampleRelay
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.counters import Progress
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.sample_update import SampleUpdate
from sampleforge.workers.worker import EventDriven, StopFlag


class ReplayFollowerWorker(EventDriven):
    """Learns from its part of each sample that learner 0 has drawn, in the same order.

    Learner 0 alone requests samples, returns priorities, publishes the weights and saves. If a
    learner is lost, the run ends.
    """

    def __init__(
        self,
        index: int,
        update: SampleUpdate,
        relay: SampleRelay,
        progress: Progress,
        stop: StopFlag,
        wakeup: Wakeup,
        counter_row: int,
        *,
        threads: int,
    ) -> None:
        self.name = f"learner {index}"
        self._index = index
        self._update = update
        self._relay = relay
        self._progress = progress
        self._stop = stop
        self._wakeup = wakeup
        self._counter_row = counter_row
        self._threads = threads

    def start(self) -> None:
        limit_threads(self._threads)
        self._count = self._progress.counters.row(self._counter_row)
        self._update.start()

    def step(self) -> bool:
        drawn = self._relay.take(self._index)
        if drawn is None:
            return False
        started = perf_counter()
        try:
            updated = self._update(*drawn)
        except RankLost:
            if self._stop.is_set():  # the other learners have left
                return False
            raise
        if updated is not None:
            self._count["batch_s"] += updated.read_s
            self._count["learn_s"] += perf_counter() - started - updated.read_s
            self._count["trained_steps"] += updated.trained
        return True

    def close(self) -> None:
        self._update.close()

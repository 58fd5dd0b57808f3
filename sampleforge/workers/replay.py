"""The replay worker, which serves one replay shard to actors and learner."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter

from sampleforge.replay.exchange import SAMPLE, ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter
from sampleforge.replay.observation_stats import ObservationStats
from sampleforge.replay.shard import ReplayShard
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.shared.counters import Counters
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.worker import EventDriven


class ReplayWorker(EventDriven):
    """Inserts complete rollouts, leases slots to actors, draws samples and updates priorities.

    The experience stays in the slots that the actors wrote. If the process is killed, its successor
    goes on with all that was stored, and with the requests that were not answered.
    """

    def __init__(
        self,
        index: int,
        make_shard: Callable[[], ReplayShard],
        exchange: ReplayExchange,
        sample_requests: SampleRequests,
        limiter: RateLimiter,
        histograms: ReplayHistograms,
        archive: ReplayArchive,
        wakeup: Wakeup,
        counters: Counters,
        counter_row: int,
    ) -> None:
        self.name = f"replay {index}"
        self._index = index
        self._make_shard = make_shard
        self._exchange = exchange
        self._sample_requests = sample_requests
        self._limiter = limiter
        self._histograms = histograms
        self._archive = archive
        self._wakeup = wakeup
        self._counters = counters
        self._counter_row = counter_row
        self._is_successor = False

    def recover(self) -> None:
        self._is_successor = True  # `start` makes the shard first

    def start(self) -> None:
        self._count = self._counters.row(self._counter_row)
        self._beat()
        self._shard = self._make_shard()
        self._seen = ObservationStats(self._exchange.slots, self._sample_requests.counted)
        self._leased = [0] * self._exchange.actors
        self._turn = 0
        self._asked = 0  # latest request for histograms
        self._saves = self._archive.last_answered(self._index)
        restoring = self._limiter.replay_counters.restoring[self._index]
        if self._is_successor and not restoring:
            self._take_over()
            return
        if self._is_successor:
            self._shard.clear()
        self._archive.restore(self._index, self._shard, self._beat)

    def _take_over(self) -> None:
        """Go on from where the previous process was killed. The statistics of the observations that
        were inserted since its last answer are lost."""
        self._sample_requests.take_over_shard(self._index)
        leased = self._exchange.take_over_shard(self._index)
        for actor in leased.values():
            self._leased[actor] += 1
        for slot in self._shard.take_over(leased):
            self._insert(slot)

    def _beat(self) -> None:
        self._count["heartbeat"][0] = monotonic()

    def step(self) -> bool:
        self._beat()
        if self._histograms.asked[0] != self._asked:
            self._asked = int(self._histograms.asked[0])
            self._histograms.answer(self._index, self._shard.count_priorities())
        # Do all three in every step, so that none starves the others.
        moved = any([self._take_rollouts(), self._lease(), self._serve()])
        if self._archive.asked[0] != self._saves:
            self._saves = int(self._archive.asked[0])
            self._archive.save(self._index, self._shard, self._beat)
            return True
        return moved

    def _take_rollouts(self) -> bool:
        started, moved = perf_counter(), False
        for actor in range(self._exchange.actors):
            while (slot := self._exchange.take_ready(self._index, actor)) is not None:
                self._insert(slot)
                self._leased[actor] -= 1
                moved = True
        if moved:
            self._sample_requests.wake_learner()
            self._count["insert_s"] += perf_counter() - started
        return moved

    def _insert(self, slot: int) -> None:
        self._seen.add(slot)  # before `insert`, which may compress its frames
        self._shard.insert(slot)

    def _lease(self) -> bool:
        """Lease slots to the actors in turn, one at a time, until each has as many as it may have.
        Otherwise the first actor would get all slots when the limiter allows only few."""
        moved, passed, exchange = False, 0, self._exchange
        while passed < exchange.actors:
            actor = self._turn
            if self._leased[actor] == exchange.leases:
                passed += 1
            elif not self._limiter.may_lease(self._index, exchange.slots.shape.items):
                return moved
            else:
                slot = self._shard.lease()
                assert slot is not None, "there is a slot for every lease"
                self._leased[actor] += 1
                exchange.lease(self._index, actor, slot)
                moved, passed = True, 0
            self._turn = (actor + 1) % exchange.actors
        return moved

    def _serve(self) -> bool:
        """Answer the learner's requests."""
        started, moved, sample_requests = perf_counter(), False, self._sample_requests
        while (request := sample_requests.next_asked(self._index)) is not None:
            if sample_requests.kind[request] == SAMPLE:
                drawn = self._shard.draw(sample_requests.items.shape[1])
                sample_requests.items[request] = drawn.items
                sample_requests.generations[request] = drawn.generations
                sample_requests.scaled_probability[request] = drawn.scaled_probability
                self._seen.take(sample_requests.seen[request])
            else:
                self._shard.update(
                    sample_requests.items[request],
                    sample_requests.generations[request],
                    sample_requests.errors[request],
                )
            sample_requests.answer(self._index, request)
            moved = True
        if moved:
            self._count["draw_s"] += perf_counter() - started
        return moved

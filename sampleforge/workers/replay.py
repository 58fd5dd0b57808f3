"""The replay worker, which serves one replay shard to actors and learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter

import numpy as np

from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.exchange import SAMPLE, ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter, ShareKeeper
from sampleforge.replay.observation_stats import ObservationStats
from sampleforge.replay.shard import ReplayShard, ShardMemory
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.rings import next_in_turn
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.worker import EventDriven, Post


@dataclass(frozen=True)
class ReplayChannels:
    """What the replay workers of a policy share with each other, with actors and with learners, and
    what outlives each of them: its shard's memory (``memories``), the number of its restarts.
    ``frames``: those of stored slots, if they are compressed."""

    exchange: ReplayExchange
    sample_requests: SampleRequests
    limiter: RateLimiter
    histograms: ReplayHistograms
    archive: ReplayArchive
    memories: Sequence[ShardMemory]
    wakeups: Sequence[Wakeup]
    restarts: RestartBudget
    frames: CompressedFrames | None = None


class ReplayWorker(EventDriven):
    """Inserts complete rollouts, leases slots to actors, draws samples and updates priorities.

    The experience stays in the slots that the actors wrote. If the process is killed, its successor
    goes on with all that was stored, and with the requests that were not answered.
    """

    def __init__(
        self,
        index: int,
        make_shard: Callable[[], ReplayShard],
        channels: ReplayChannels,
        post: Post,
    ) -> None:
        super().__init__(f"replay {index}", post)
        self._index = index
        self._make_shard = make_shard
        self._exchange = channels.exchange
        self._sample_requests = channels.sample_requests
        self._limiter = channels.limiter
        self._histograms = channels.histograms
        self._archive = channels.archive
        self._is_successor = False

    def recover(self) -> None:
        self._is_successor = True  # `start` makes the shard first

    def start(self) -> None:
        super().start()
        self._beat()
        self._shard = self._make_shard()
        self._seen = ObservationStats(self._exchange.slots, self._sample_requests.counted)
        self._leased = np.zeros(self._exchange.actors, np.int64)
        self._num_leased = 0  # of all actors together
        self._turn = 0
        shares = self._exchange.shares
        self._shares = None if shares is None else ShareKeeper(shares)
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
            self._count_lease(actor, 1)
        for slot in self._shard.take_over(leased):
            self._insert(slot)

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
        for actor in self._exchange.ready_actors(self._index):
            while (slot := self._exchange.take_ready(self._index, actor)) is not None:
                self._insert(slot)
                self._count_lease(actor, -1)
                if self._shares is not None:
                    self._shares.count(actor)
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
        moved, exchange = False, self._exchange
        while self._num_leased < exchange.actors * exchange.leases:
            if not self._limiter.may_lease(self._index, exchange.slots.shape.items):
                break
            actor = self._next_to_lease()
            if actor is None:
                break
            slot = self._shard.lease()
            assert slot is not None, "there is a slot for every lease"
            self._count_lease(actor, 1)
            exchange.lease(self._index, actor, slot)
            self._turn = (actor + 1) % exchange.actors
            moved = True
        return moved

    def _next_to_lease(self) -> int | None:
        """Return the next actor in turn that has not all its slots and may have another one now;
        None if there is none."""
        lacking = np.flatnonzero(self._leased < self._exchange.leases)
        if self._shares is not None:
            lacking = lacking[[self._shares.may_lease(actor) for actor in lacking.tolist()]]
        return next_in_turn(lacking, self._turn) if len(lacking) else None

    def _count_lease(self, actor: int, change: int) -> None:
        """Count a slot that an actor gets (``change`` 1) or has given back (-1)."""
        self._leased[actor] += change
        self._num_leased += change

    def _serve(self) -> bool:
        """Answer the learner's requests. Those of the same kind that follow each other are served
        together, with the same result as one after the other."""
        sample_requests = self._sample_requests
        asked = sample_requests.asked(self._index)
        if not asked:
            return False
        started = perf_counter()
        kinds = sample_requests.kind
        for kind, requests in groupby(asked, key=lambda request: int(kinds[request])):
            (self._draw if kind == SAMPLE else self._update)(list(requests))
        sample_requests.wake_learner()
        self._count["draw_s"] += perf_counter() - started
        return True

    def _draw(self, requests: list[int]) -> None:
        """Answer requests for samples."""
        sample_requests = self._sample_requests
        drawn = self._shard.draw_batches(sample_requests.items.shape[1], len(requests))
        for request, sample in zip(requests, drawn, strict=True):
            sample_requests.items[request] = sample.items
            sample_requests.generations[request] = sample.generations
            sample_requests.scaled_probability[request] = sample.scaled_probability
            self._seen.take(sample_requests.seen[request])
            sample_requests.answer(self._index, request)

    def _update(self, requests: list[int]) -> None:
        """Answer requests that bring TD errors."""
        sample_requests = self._sample_requests
        self._shard.update(
            sample_requests.items[requests].reshape(-1),
            sample_requests.generations[requests].reshape(-1),
            sample_requests.errors[requests].reshape(-1),
        )
        for request in requests:
            sample_requests.answer(self._index, request)

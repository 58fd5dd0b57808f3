"""A replay worker with the test in the place of its actors and its learner."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sampleforge.replay.exchange import SAMPLE, UPDATE, ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.shard import Prioritisation, ReplayShard, ShardMemory, ShardSlots
from sampleforge.replay.snapshot import ReplayArchive, ReplayFolder
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.replay import ReplayChannels, ReplayWorker
from tests.support.posts import some_post
from tests.support.replay import ROLLOUT, ROWS, SPEC, STEPS

ACTORS, LEASES, CAPACITY, BATCH, REQUESTS = 2, 2, 4, 8, 4
OWN = ShardSlots(0, 0, CAPACITY + ACTORS * LEASES, CAPACITY)


class ReplayWorld:
    """All that outlives a replay worker, and a record of what it should hold. ``limiter``: keeps
    samples per insert; by default it does not.

    ``rollouts``: number of each rollout that was handed over, in order; it is the first number of
    each of its observations. ``lives``: workers so far.
    """

    def __init__(self, alpha: float = 0.6, limiter: RateLimiter | None = None) -> None:
        self.slots = TrajectorySlots(
            OWN.count,
            SlotShape(ROLLOUT, ROWS, SPEC, 0, {}, finished=ITEM_COLUMNS),
            debug=True,
        )
        self.wakeup = Wakeup()
        actors, learner = [Wakeup() for _ in range(ACTORS)], Wakeup()
        self.exchange = ReplayExchange(
            self.slots, actors, [self.wakeup], LEASES, lambda slots, slot: None
        )
        self.requests = SampleRequests(REQUESTS, BATCH, [self.wakeup], learner)
        self.memory = ShardMemory(OWN.count, STEPS, prioritised=alpha > 0)
        self.limiter = limiter or RateLimiter(ReplayCounters(1), None, 0.0, 1)
        self.counters = self.limiter.replay_counters
        self.priority = Prioritisation(alpha, 1e-6)
        self.random = np.random.default_rng(0)
        self.rollouts: list[int] = []
        self.usable: dict[int, int] = {}  # items of each rollout that can be drawn
        self.priorities: dict[int, np.ndarray] = {}  # of each rollout, [items]
        self.asked: set[int] = set()
        self.samples = 0
        self.lives = 0
        self.worker = self.new_worker()
        self.worker.start()

    def new_worker(self) -> ReplayWorker:
        """The worker of another life, not started."""
        self.lives += 1
        archive = ReplayArchive([self.wakeup], self.slots, {}, ReplayFolder(Path()))
        histograms = ReplayHistograms(self.requests, 1)
        channels = ReplayChannels(
            self.exchange,
            self.requests,
            self.limiter,
            histograms,
            archive,
            [self.memory],
            [self.wakeup],
            RestartBudget(1, 0),
        )
        return ReplayWorker(0, self.new_shard, channels, some_post(self.wakeup))

    def new_shard(self) -> ReplayShard:
        return ReplayShard(OWN, self.slots, self.memory, self.priority, self.counters, [self.lives])

    def replace(self) -> None:
        """A successor of a worker that was killed."""
        self.worker = self.new_worker()
        self.begin()

    def begin(self) -> None:
        """What a successor does first."""
        self.worker.recover()
        self.worker.start()

    def play(self) -> None:
        """Each actor completes a rollout, if it has a slot."""
        for actor in range(ACTORS):
            slot = self.exchange.take_free(actor)
            if slot is None:
                continue
            number = len(self.rollouts) + 1
            self.rollouts.append(number)
            left = ROLLOUT - np.arange(ROLLOUT)[:, None]
            steps = np.minimum(left, self.random.integers(0, 4, (ROLLOUT, ROWS)))
            errors = self.random.gamma(0.5, size=(ROLLOUT, ROWS)).astype(np.float32)
            self.slots.obs["obs"][slot] = number
            self.slots.valid[slot], self.slots.first[slot] = True, False
            self.slots.extras["steps"][slot] = steps
            self.slots.extras["td_error"][slot] = errors
            usable = steps.reshape(-1) > 0
            self.usable[number] = int(usable.sum())
            self.priorities[number] = np.where(usable, self.priority(errors.reshape(-1)), 0.0)
            self.exchange.hand_over(actor, slot)

    def learn(self) -> None:
        """The learner takes what was answered, checks the samples, and asks again."""
        while (request := self.requests.take_answered(0)) is not None:
            self.asked.remove(request)  # KeyError: it was answered twice
            if self.requests.kind[request] == SAMPLE:
                self._check_sample(request)
                self._return_errors(request)
        for request in self.requests.spare() if self.counters.priority_sum[0] else []:
            assert request not in self.asked, "it is on its way"
            self.asked.add(request)
            self.requests.ask(0, request, SAMPLE)

    def _check_sample(self, request: int) -> None:
        self.samples += 1
        items = self.requests.items[request]
        still = self.slots.generation[items // STEPS] == self.requests.generations[request]
        numbers = self._numbers(items[still] // STEPS)
        assert (self.slots.owner[items[still] // STEPS] == Owner.STORED).all()
        drawn = zip(numbers, items[still] % STEPS, strict=True)
        assert all(self.priorities[number][item] > 0 for number, item in drawn)

    def _return_errors(self, request: int) -> None:
        errors = self.random.gamma(0.5, size=BATCH).astype(np.float32)
        items, generations = self.requests.items[request], self.requests.generations[request]
        for item, generation, error in zip(items, generations, errors, strict=True):
            if self.slots.generation[item // STEPS] == generation:
                number = self._numbers(np.array([item // STEPS]))[0]
                priority = self.priority(np.array([error], np.float32))[0]
                self.priorities[number][item % STEPS] = priority
        self.requests.errors[request] = errors
        self.asked.add(request)
        self.requests.ask(0, request, UPDATE)

    def _numbers(self, slots: np.ndarray) -> list[int]:
        return self.slots.obs["obs"][slots, 0, 0, 0].astype(int).tolist()

    def round(self) -> None:
        self.play()
        self.learn()
        while self.worker.step():
            pass

    def check(self, *, in_order: bool = True) -> None:
        """The worker holds exactly what it should hold, ``in_order`` of the hand-over; it takes the
        rollouts of one actor after those of the other. Raises AssertionError."""
        while self.worker.step():
            pass
        slots, shard = self.slots, self.worker._shard
        stored = list(shard.stored_slots)
        expected = self._numbers(np.array(stored, int))
        newest = self.rollouts[-CAPACITY:]
        assert expected == newest if in_order else sorted(expected) == newest
        owner_stored = np.flatnonzero(slots.owner[: OWN.count] == Owner.STORED)
        assert sorted(stored) == owner_stored.tolist()
        leased = np.flatnonzero(self.exchange._lease_of["actor"] >= 0).tolist()
        assert sorted([*stored, *leased, *shard._free]) == list(range(OWN.count))
        assert sum(self.exchange.num_free(actor) for actor in range(ACTORS)) == len(leased)
        assert len(leased) == ACTORS * LEASES, "no lease is lost"
        leaves = np.zeros((OWN.count, STEPS))
        for slot, number in zip(stored, expected, strict=True):
            leaves[slot] = self.priorities[number]
        self._check_counters(leaves, expected, len(leased))

    def _check_counters(self, leaves: np.ndarray, expected: list[int], leased: int) -> None:
        counters, tree = self.counters, self.worker._shard._tree
        usable = sum(self.usable[number] for number in expected)
        assert counters.stored[0] == usable
        assert counters.inserted[0] == sum(self.usable.values())
        assert counters.leased[0] == leased * STEPS
        if tree is None:
            assert counters.priority_sum[0] == usable
            return
        np.testing.assert_allclose(tree.leaves.reshape(leaves.shape), leaves, rtol=1e-12)
        np.testing.assert_allclose(tree.total, leaves.sum(), rtol=1e-12)
        assert counters.priority_sum[0] == tree.total

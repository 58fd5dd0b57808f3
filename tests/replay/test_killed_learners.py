"""Learners of Ape-X that are killed at any store: no sample request is lost or sent twice, and
samples per insert stay within the tolerance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sampleforge.replay.exchange import SampleRelay
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.sample_batches import ReadySample, SampleSource
from sampleforge.shared.wakeup import Wakeup
from tests.support.kills import kills, live, met, watched
from tests.support.replay import STEPS
from tests.support.replay_worker import ACTORS, BATCH, LEASES, REQUESTS, ReplayWorld

TOLERANCE = 4.0 * STEPS * ACTORS * LEASES
"""As large as a run's: the slots that actors have, and the samples that are requested ahead."""


class World:
    """A replay worker, actors, and learner 0 with its source of samples."""

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        limiter = RateLimiter(ReplayCounters(1), 1.0, tolerance, 2 * STEPS)
        self.replay = ReplayWorld(limiter=limiter)
        self.requests, self.limiter = self.replay.requests, limiter
        self.lives = 0
        self.learned = 0
        self.source = self.new_source()
        self.balances: list[float] = []

    def new_source(self) -> SampleSource:
        source = SampleSource(self.requests, self.limiter, [1])
        source.start(life=self.lives)
        self.lives += 1
        return source

    def learn(self) -> bool:
        """The learner's step."""
        moved = self.source.gather()
        sample = self.source.take()
        if sample is None:
            return moved
        self.learn_from(sample)
        return True

    def learn_from(self, sample: ReadySample) -> None:
        self.learned += 1
        self.source.done(sample, np.full(BATCH, 0.5 + self.learned, np.float32))

    def serve(self) -> None:
        """The replay worker's step, after which the balance is looked at."""
        self.replay.worker.step()
        self.look()

    def look(self) -> None:
        if self.replay.counters.learning[0]:
            self.balances.append(self.limiter.balance)

    def round(self) -> None:
        self.replay.play()
        while self.replay.worker.step():
            self.look()
        while self.learn():
            self.look()

    def two_steps(self) -> None:
        """The part of a learner's life in which it is killed."""
        self.learn()
        self.learn()

    def check(self, killed: int = 1, updates: int = 5) -> None:
        """All requests go round again. ``killed``: learners so far; ``updates``: the fewest that
        the learner makes meanwhile. Raises AssertionError."""
        counters, before = self.replay.counters, self.learned
        for _ in range(5):
            self.round()
        assert self.learned >= before + updates, "the learner goes on"
        while self.replay.worker.step():
            pass
        at_learner = [*self.source._spare, *(ready.request for ready in self.source._ready)]
        rings = (self.requests._to_shard, self.requests._to_learner)
        under_way = [request for each in rings for request in each.waiting(0)]
        assert sorted(at_learner + under_way) == list(range(REQUESTS)), "each once"
        assert max(map(abs, self.balances)) <= self.limiter.tolerance
        # A killed learner may have counted a sample that it did not request, a killed replay worker
        # may have drawn one that it did not answer.
        not_drawn = counters.sampled[0] - counters.drawn[0]
        assert -BATCH * (self.replay.lives - 1) <= not_drawn <= BATCH * killed


def busy_world() -> World:
    """A learner that has samples, and has returned errors, and whose replay worker is at rest."""
    world = World()
    for _ in range(6):
        world.round()
    world.source.gather()
    world.replay.play()
    world.replay.worker.step()
    return world


@pytest.mark.long
@pytest.mark.parametrize("moving", [False, True], ids=["worker at rest", "worker moves"])
def test_no_request_is_lost_wherever_the_learner_is_killed(moving: bool) -> None:
    """And wherever the replay worker is at that moment."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        worlds.append(busy_world())
        return worlds[-1].two_steps

    instants = 0
    for at in kills(new_life):
        instants += 1
        world = worlds.pop()
        if moving:  # it is killed in the same instant, between an answer and its end, too
            live(world.replay.worker.step, at)
        world.source = world.new_source()
        live(world.two_steps, instants)
        world.source = world.new_source()
        if moving:
            world.replay.replace()
        world.check(killed=2)
    assert instants > 30, "instants"


@pytest.mark.long
def test_a_learner_goes_on_while_a_killed_replay_worker_is_away() -> None:
    """Wherever the replay worker was killed: the learner uses what was answered, and sends it back,
    although the worker has not taken the request from its ring."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        world = busy_world()
        while world.learn():  # all requests are with the worker
            pass
        worlds.append(world)
        return world.replay.worker.step

    instants = 0
    for _ in kills(new_life, step=2):
        instants += 1
        world = worlds.pop()
        while world.learn():
            pass
        if instants % 2:  # the learner is killed as well
            world.source = world.new_source()
            while world.learn():
                pass
        world.replay.replace()
        world.check()
    assert instants > 50, "instants"


@pytest.mark.long
def test_the_learner_and_the_replay_worker_may_meet_between_any_two_stores() -> None:
    world = busy_world()
    watched(world.two_steps, world.serve)
    watched(world.replay.worker.step, world.learn)
    world.check(killed=0)
    worlds: list[World] = []
    at = 0
    while True:  # a successor looks for its requests while the worker answers some
        at += 1
        worlds.append(busy_world())
        world = worlds.pop()
        live(world.two_steps, 1 + at % 50)
        made: list[SampleSource] = []
        if not met(lambda: made.append(world.new_source()), at, world.serve):  # noqa: B023
            break
        (world.source,) = made
        world.check(killed=1)
    assert at > 10, "instants"


@pytest.mark.long
@pytest.mark.parametrize("rounds", [0, 40])
def test_no_more_is_inserted_than_allowed_wherever_the_learner_is_killed_that_begins(
    rounds: int,
) -> None:
    """The actors go on while no learner is there."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        world = World(tolerance=1.0 * STEPS)
        while world.replay.counters.stored[0] < world.limiter.learning_starts:
            world.replay.play()
            while world.replay.worker.step():
                pass
        worlds.append(world)
        return world.source.gather

    instants = 0
    for _ in kills(new_life):
        instants += 1
        world = worlds.pop()
        while world.replay.worker.step():
            world.look()
        for _ in range(rounds):
            world.replay.play()
            while world.replay.worker.step():
                world.look()
        world.source = world.new_source()
        world.check(updates=1)
    assert instants > 10, "instants"


def test_the_limit_of_inserts_holds_at_every_store_of_a_learner_that_begins() -> None:
    limiter = RateLimiter(ReplayCounters(1), 1.0, 20.0, learning_starts=100)
    counters = limiter.replay_counters
    counters.inserted[0] = counters.stored[0] = 100
    counters.leased[0] = 20
    seen: list[bool] = []
    watched(limiter.begin_learning, lambda: seen.append(limiter.may_lease(0, 10)))
    assert counters.learning[0] and len(seen) > 2
    assert not any(seen), "the slots that actors have are all that may be inserted"


# ---- the relay from learner 0 to the others ----


class Relayed:
    """Learner 0, which sends requests, and two others, which take them."""

    def __init__(self) -> None:
        self.relay = SampleRelay([Wakeup(), Wakeup()], requests=1)

    def taken(self, learner: int) -> list[tuple[int, float]]:
        found = []
        while (sent := self.relay.take(learner)) is not None:
            found.append(sent)
        return found

    def update(self, progress: float) -> None:
        """One update of all learners."""
        self.relay.send(0, progress)
        for learner in (1, 2):
            assert self.relay.take(learner) == (0, progress)
            assert self.relay.take(learner) is None

    def regroup(self, *, first: int) -> None:
        """All learners prepare for a new group, and learner ``first`` first. If that is not learner
        0, it sends once more before it does so."""
        for learner in ((first + number) % 3 for number in range(3)):
            if learner:
                self.taken(learner)
                continue
            if first:
                self.relay.send(0, 0.9)
            self.relay.forget()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_all_learners_learn_from_the_same_samples_wherever_learner_0_is_killed(first: int) -> None:
    """Many times, before any other learner has taken what was sent."""
    made: list[Relayed] = []

    def new_life() -> Callable[[], object]:
        relayed = Relayed()
        for number in range(5):
            relayed.update(number / 10)
        made.append(relayed)
        return lambda: relayed.relay.send(0, 0.6)

    instants = 0
    for at in kills(new_life):
        instants += 1
        relayed = made.pop()
        for _ in range(5):
            live(relayed.relay.forget, at)
            relayed.regroup(first=first)
            live(lambda relayed=relayed: relayed.relay.send(0, 0.7), at)  # type: ignore[misc]
        relayed.regroup(first=first)
        for number in range(5):
            relayed.update(0.8 + number / 100)
    assert instants > 5, "instants"


def test_another_learner_takes_nothing_of_the_last_group_wherever_it_was_killed() -> None:
    made: list[Relayed] = []

    def new_life() -> Callable[[], object]:
        relayed = Relayed()
        relayed.relay.send(0, 0.1)
        made.append(relayed)
        return lambda: relayed.taken(1)

    instants = 0
    for _ in kills(new_life):
        instants += 1
        relayed = made.pop()
        relayed.relay.forget()
        assert relayed.taken(1) == []
        relayed.taken(2)
        relayed.update(0.2)
    assert instants > 2, "instants"

"""Learners that are killed at any store: their successors find every slot again, each rollout is
learned from once at most, and always whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sampleforge.rollouts.batch import BatchBuilder, SerialBatchSource
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.wakeup import Wakeup
from tests.support.kills import kills, live, watched
from tests.support.slots import some_slots
from tests.support.variants import slow

ACTORS, SLOTS, BATCH = 2, 8, 2


class World:
    """Actors that play rollouts, each with a number of its own, and learner 0 of one or two.

    ``learned``: numbers of the rollouts that learner 0 has learned from. ``generations``: of each
    slot, in the life in which an actor had it last."""

    def __init__(self, learners: int, *, synchronous: bool) -> None:
        self.slots = some_slots(SLOTS, debug=True)
        actors, others = [Wakeup() for _ in range(ACTORS)], [Wakeup() for _ in range(learners)]
        self.exchange = SlotExchange(self.slots, actors, others)
        self.synchronous = synchronous
        self.learners = learners
        self.generations = np.full(SLOTS, -1)
        self.played = 0
        self.learned: list[int] = []
        for _ in range(2):
            self.play()

    def play(self) -> None:
        """Each actor plays a rollout, if it has a slot."""
        for actor in range(ACTORS):
            slot = self.exchange.take_free(actor)
            if slot is None:
                continue
            assert self.slots.generation[slot] > self.generations[slot], "another life of the slot"
            self.generations[slot] = self.slots.generation[slot]
            self.played += 1
            for column in self.slots.columns().values():
                column[slot] = 0
            self.slots.version[slot] = 1
            self.slots.valid[slot] = True
            self.slots.reward[slot] = self.played
            self.exchange.hand_over(actor, slot)

    def new_learner(self) -> Callable[[], bool]:
        """The step of a learner's life, which gathers or learns."""
        builder = BatchBuilder(self.slots, BATCH, torch.device("cpu"))
        source = SerialBatchSource(
            self.exchange, builder, Wakeup(), np.zeros(1), synchronous=self.synchronous
        )

        def step() -> bool:
            moved = source.gather()
            taken = source.take(0.0)
            if taken is None:
                return moved
            rewards = taken.batch.reward
            assert (rewards == rewards[:1]).all(), "whole rollouts"
            self.learned += sorted({int(number) for number in rewards[0].tolist()})
            source.done()
            return True

        return step

    def life(self) -> None:
        """Learner 0 gathers and learns from two batches."""
        step = self.new_learner()
        for _ in range(2 * BATCH):
            step()

    def take_over(self) -> None:
        self.exchange.give_back_all(0)

    def check(self) -> None:
        """All slots go round again, and nothing was learned from twice."""
        assert len(self.learned) == len(set(self.learned))
        step, rounds = self.new_learner(), 3
        self._read_all(step)
        before = self.played
        for _ in range(rounds):
            self.play()
            self._read_all(step)
        assert len(self.learned) == len(set(self.learned))
        assert self.played == before + rounds * ACTORS, "each actor has had a slot in each round"
        self._check_slots(step)

    def _read_all(self, step: Callable[[], bool]) -> None:
        """The learners read all that is ready."""
        while step():
            pass
        for learner in range(1, self.learners):
            while (slot := self.exchange.take_ready(learner)) is not None:
                self.exchange.give_back(slot)

    def _check_slots(self, step: Callable[[], bool]) -> None:
        """Count the slots: an actor that takes all of them has them all, each once."""
        taken = [self.exchange.take_free(actor) for actor in range(ACTORS) for _ in range(SLOTS)]
        free = [slot for slot in taken if slot is not None]
        kept = SLOTS - len(free)
        assert len(set(free)) == len(free)
        assert kept <= (BATCH - 1 if self.synchronous else 0), "slots of a batch in the making"
        assert not step()


VARIANTS = pytest.mark.parametrize("learners", [1, 2])
SYNCHRONOUS = pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("learners", "synchronous"), [(2, False), (2, True), slow(1, False), slow(1, True)]
)
def test_no_slot_is_lost_wherever_a_learner_is_killed(learners: int, synchronous: bool) -> None:
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        worlds.append(World(learners, synchronous=synchronous))
        return worlds[-1].life

    instants = 0
    for at in kills(new_life):
        instants += 1
        world = worlds.pop()
        world.play()  # the actors go on meanwhile
        if at % 2:
            live(world.take_over, 1 + at % 40)
        world.play()
        world.take_over()
        world.check()
    assert instants > 100, "instants"


@pytest.mark.long
@SYNCHRONOUS
def test_no_slot_is_lost_if_the_actors_go_on_between_any_two_stores(synchronous: bool) -> None:
    """While the successor takes over, and while it learns."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        worlds.append(World(1, synchronous=synchronous))
        return worlds[-1].life

    for _ in kills(new_life, step=7):
        world = worlds.pop()
        watched(world.take_over, world.play)
        watched(world.life, world.play)
        world.take_over()
        world.check()


@pytest.mark.long
def test_no_slot_is_lost_wherever_the_successor_is_killed() -> None:
    """Of each learner that had taken one slot and was learning from another."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        world = World(1, synchronous=True)
        step = world.new_learner()
        step()
        world.exchange.take_ready(0)
        worlds.append(world)
        return world.take_over

    instants = 0
    for _ in kills(new_life):
        instants += 1
        world = worlds.pop()
        world.take_over()
        world.check()
    assert instants > 10, "instants"


def test_complete_rollouts_stay_ready_for_the_successor() -> None:
    """Those that the killed learner had not marked as its own are all learned from."""
    world = World(1, synchronous=False)
    played = world.played
    live(world.life, 5)
    world.take_over()
    step = world.new_learner()
    while step():
        pass
    assert len(world.learned) >= played - 1

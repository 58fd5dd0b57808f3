"""Slots, their exchange and the batches made of them: ownership moves, data stays whole."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.shared.rings import IndexRings
from sampleforge.shared.wakeup import Wakeup
from tests.support.slots import some_slots, some_spec


def test_columns_have_the_announced_shapes_and_bytes() -> None:
    slots = some_slots()
    assert slots.obs["image"].shape == (4, 6, 2, 8, 8, 1)
    assert slots.obs["image"].dtype == np.uint8
    assert slots.actions["action"].shape == (4, 5, 2)
    assert slots.first.shape == (4, 6, 2)
    assert slots.state.shape == (4, 2, 7)
    assert slots.final_value is None
    assert slots.arrays.nbytes == slots.shape.nbytes(4)


def test_same_step_environments_have_a_column_for_final_values() -> None:
    slots = TrajectorySlots(1, SlotShape(5, 2, some_spec("same_step"), 0))
    assert slots.final_value is not None
    assert slots.final_value.shape == (1, 5, 2)


def test_numpy_and_torch_views_are_the_same_memory() -> None:
    slots = some_slots()
    slots.reward[3, 4, 1] = 2.5
    assert slots.columns()["reward"][3, 4, 1] == 2.5


def test_debug_refuses_a_hand_over_by_a_worker_that_does_not_own_the_slot() -> None:
    slots = some_slots(debug=True)
    slots.move(0, Owner.FREE, Owner.WRITING)
    with pytest.raises(AssertionError, match="WRITING, expected READY"):
        slots.move(0, Owner.READY, Owner.READING)


def test_debug_poisons_freed_slots_and_the_generation_moves() -> None:
    slots = some_slots(debug=True)
    slots.obs["x"][1] = 1.0
    for old, new in pairwise([Owner.FREE, Owner.WRITING, Owner.READY, Owner.READING, Owner.FREE]):
        slots.move(1, old, new)
    assert np.isnan(slots.obs["x"][1]).all()
    assert (slots.obs["image"][1] == 0xAB).all()
    assert slots.generation[1] == 1
    assert not np.isnan(slots.obs["x"][0]).any()


def some(slot: int | None) -> int:
    assert slot is not None
    return slot


def test_every_slot_circulates_and_stays_with_its_actor() -> None:
    slots = some_slots(6, debug=True)
    exchange = SlotExchange(slots, [Wakeup(), Wakeup()], [Wakeup()])
    for _ in range(5):
        taken = {actor: [some(exchange.take_free(actor)) for _ in range(3)] for actor in (0, 1)}
        assert sorted(taken[0] + taken[1]) == list(range(6))
        assert exchange.take_free(0) is None
        for actor, mine in taken.items():
            for slot in mine:
                assert slot % 2 == actor
                exchange.hand_over(actor, slot)
        ready = [some(exchange.take_ready()) for _ in range(6)]
        assert [slot % 2 for slot in ready] == [ready[0] % 2, 1 - ready[0] % 2] * 3  # in turn
        assert exchange.take_ready() is None
        for slot in ready:
            exchange.give_back(slot)


@pytest.mark.parametrize("actors", [3, 256])
def test_the_learner_takes_slots_of_the_actors_in_turn_and_looks_into_one_ring_for_each(
    actors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many actors there are: it must not look for a slot in the ring of each."""
    slots = some_slots(2 * actors, debug=True)
    exchange = SlotExchange(slots, [Wakeup() for _ in range(actors)], [Wakeup()])
    looks, peek = list[int](), IndexRings.peek

    def counted(rings, ring):
        looks.append(ring)
        return peek(rings, ring)

    random, turn, ready = np.random.default_rng(0), 0, [list[int]() for _ in range(actors)]
    for _ in range(20):
        for actor in random.integers(0, actors, 4).tolist():
            if (slot := exchange.take_free(actor)) is not None:
                exchange.hand_over(actor, slot)
                ready[actor].append(slot)
        monkeypatch.setattr(IndexRings, "peek", counted)
        for _ in range(random.integers(0, 6)):
            waiting = [at % actors for at in range(turn, turn + actors) if ready[at % actors]]
            expected = ready[waiting[0]].pop(0) if waiting else None
            looks.clear()
            assert exchange.take_ready() == expected
            assert len(looks) == (expected is not None)
            if expected is not None:
                exchange.give_back(expected)
                turn = waiting[0] + 1
        monkeypatch.undo()


def test_slots_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="5 slots cannot be dealt evenly to 2"):
        SlotExchange(some_slots(5), [Wakeup(), Wakeup()], [Wakeup()])


def test_a_batch_holds_each_slot_beside_the_others() -> None:
    slots = some_slots()
    generator = np.random.default_rng(0)
    for column in slots.columns().values():
        column.copy_(torch.from_numpy(generator.integers(0, 2, column.shape)))
    builder = BatchBuilder(slots, 3)
    chosen = [2, 0, 3]
    for _ in range(2):  # the buffers are reused
        assert [builder.add(slot) for slot in chosen] == [False, False, True]
        batch = builder.take()
        assert batch.steps == (5, 6)
        for place, slot in enumerate(chosen):
            rows = slice(2 * place, 2 * place + 2)
            assert (batch.obs["image"][:, rows].numpy() == slots.obs["image"][slot]).all()
            assert (batch.actions["action"][:, rows].numpy() == slots.actions["action"][slot]).all()
            assert (batch.is_first[:, rows].numpy() == slots.first[slot]).all()
            assert (batch.state[rows].numpy() == slots.state[slot]).all()
        chosen = [1, 1, 2]

"""Slots, rings, exchange, weights, batches: ownership moves, data stays whole."""

from __future__ import annotations

import threading
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch

from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.shared.counters import Counters
from sampleforge.shared.rings import IndexRings, check_store_order
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import Autoreset, EnvSpec, action_specs, observation_specs


def some_spec(autoreset: Autoreset = "next_step") -> EnvSpec:
    obs = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), "x": gym.spaces.Box(-1, 1, (3,))}
    )
    return EnvSpec(
        "fake", observation_specs(obs), action_specs(gym.spaces.Discrete(4)), autoreset=autoreset
    )


def some_slots(count: int = 4, **kwargs: bool) -> TrajectorySlots:
    return TrajectorySlots(count, SlotShape(5, 2, some_spec(), 7), **kwargs)


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


def test_a_ring_gives_back_in_order_through_many_wraps() -> None:
    rings = IndexRings(2, capacity=3)
    pushed, popped = 0, []
    for burst in (3, 1, 2, 3, 3, 2) * 20:
        for _ in range(burst):
            if rings.size(1) < 3:
                rings.push(1, pushed)
                pushed += 1
        while (item := rings.pop(1)) is not None:
            popped.append(item)
    assert popped == list(range(pushed))
    assert rings.pop(0) is None


def test_a_ring_between_two_threads_loses_and_repeats_nothing() -> None:
    rings, count = IndexRings(1, capacity=8), 2_000

    def produce() -> None:
        for item in range(count):
            while rings.size(0) == 8:
                pass
            rings.push(0, item)

    producer = threading.Thread(target=produce)
    producer.start()
    popped: list[int] = []
    while len(popped) < count:
        if (item := rings.pop(0)) is not None:
            popped.append(item)
    producer.join()
    assert popped == list(range(count))


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


def test_slots_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="5 slots cannot be dealt evenly to 2"):
        SlotExchange(some_slots(5), [Wakeup(), Wakeup()], [Wakeup()])


def test_a_wakeup_is_remembered_once() -> None:
    wakeup = Wakeup()
    assert not wakeup.wait(0)
    wakeup.set()
    wakeup.set()
    assert wakeup.wait(10)
    assert not wakeup.wait(0)
    wakeup.close()


def test_weights_arrive_whole_with_their_version() -> None:
    state = {"w": torch.zeros(3), "count": torch.zeros((), dtype=torch.float64)}
    weights = SharedWeights(state)
    assert weights.published == 0
    for version in (10, 20, 30):
        weights.publish(
            {"w": torch.full((3,), float(version)), "count": torch.tensor(1.5)}, version
        )
        into = {"w": torch.empty(3), "count": torch.empty((), dtype=torch.float64)}
        assert weights.read(into) == (version // 10, version)
        assert into["w"].tolist() == [version] * 3
        assert weights.version == version


def test_a_reader_that_is_overtaken_never_sees_torn_weights() -> None:
    """All elements of a publication are equal: a mixture would show."""
    size, wanted = 50_000, 30
    weights = SharedWeights({"a": torch.zeros(size), "b": torch.zeros(size)})
    enough = threading.Event()

    def publish() -> None:
        version = 0
        while not enough.is_set():
            version += 1
            value = torch.full((size,), float(version))
            weights.publish({"a": value, "b": value}, version)

    writer = threading.Thread(target=publish)
    writer.start()
    into = {"a": torch.empty(size), "b": torch.empty(size)}
    seen: set[int] = set()
    try:
        while len(seen) < wanted:
            _, version = weights.read(into)
            assert (into["a"] == version).all() and (into["b"] == version).all()
            seen.add(version)
    finally:
        enough.set()
        writer.join()


def test_a_write_in_progress_makes_the_reader_copy_again() -> None:
    """The publication after next has begun while the announced count moved by one only."""
    weights = SharedWeights({"a": torch.zeros(1)})
    for version in (1, 2):
        weights.publish({"a": torch.tensor([float(version)])}, version)

    class Overtaken(dict):  # type: ignore[type-arg]
        """The first copy is overtaken by one whole publication and the beginning of the next."""

        copies = 0

        def __getitem__(self, name: str) -> torch.Tensor:
            self.copies += 1
            if self.copies == 1:
                weights.publish({"a": torch.tensor([3.0])}, 3)
                weights._arrays["begun"][0] = 4
                weights._arrays.tensor("0/a").fill_(-1.0)  # half of publication 2, being rewritten
            return super().__getitem__(name)

    into = Overtaken(a=torch.empty(1))
    assert weights.read(into) == (3, 3)
    assert super(Overtaken, into).__getitem__("a").item() == 3.0


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


def test_counters_add_up_over_workers() -> None:
    counters = Counters(("a", "b"), workers=3)
    for worker in range(3):
        counters.row(worker)["b"] += worker
    assert counters.total("b") == 3
    assert counters.column("b").tolist() == [0, 1, 2]
    assert counters.total("a") == 0


@pytest.mark.parametrize(
    ("machine", "warns"), [("x86_64", False), ("AMD64", False), ("arm64", True)]
)
def test_machines_that_may_reorder_stores_cause_a_warning(
    monkeypatch: pytest.MonkeyPatch, machine: str, warns: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    warning = check_store_order()
    assert (warning is not None) == warns
    assert warning is None or machine in warning

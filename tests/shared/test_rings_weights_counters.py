"""Rings, weights and counters in shared memory: nothing is lost, repeated or torn."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from sampleforge.shared.counters import Counters
from sampleforge.shared.newest import SharedWeights
from sampleforge.shared.rings import IndexRings, check_store_order


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


@pytest.mark.long
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


def test_counters_add_up_over_workers() -> None:
    counters = Counters(("a", "b"), workers=3)
    for worker in range(3):
        counters.row(worker)["b"] += worker
    assert counters.total("b") == 3
    assert counters.column("b").tolist() == [0, 1, 2]
    assert counters.total("a") == 0


def test_the_counters_of_two_workers_are_in_different_cache_lines() -> None:
    counters = Counters([f"c{i}" for i in range(9)], workers=3)
    rows = [counters.row(worker) for worker in range(3)]
    for row in rows:
        assert next(iter(row.values())).ctypes.data % 64 == 0
    lines = [{each.ctypes.data // 64 for each in row.values()} for row in rows]
    assert not lines[0] & lines[1] and not lines[1] & lines[2]


def test_rows_of_other_machines_are_set_and_the_own_one_is_kept() -> None:
    counters = Counters(("a", "b", "c"), workers=3)
    counters.row(1)["b"] += 7
    counters.set_remote(np.arange(6.0).reshape(2, 3), keep=1)
    found = [counters.column(name).tolist() for name in counters.names]
    assert found == [[0, 0, 0], [1, 7, 0], [2, 0, 0]]


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

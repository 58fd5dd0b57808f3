"""Writers of shared values and queues that are killed before any of their stores: readers find the
old value or the new one, whole, also while a successor writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sampleforge.shared.counters import (
    FAULT_BYTES,
    Counters,
    FirstFault,
    RestartBudget,
    TrainingClock,
)
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.records import EpisodeQueue, EpisodeRecord, Evaluation, Evaluations
from sampleforge.shared.rings import IndexRings
from tests.support.kills import (
    Publication,
    check_killed_writers,
    check_overtaken_readers,
    kills,
    live,
    met,
    watched,
)

SHAPES = {"w": (3, 2), "b": (3,)}


def weights_of(number: int) -> dict[str, torch.Tensor]:
    """Tensors whose every element is ``number``."""
    return {name: torch.full(shape, float(number)) for name, shape in SHAPES.items()}


def only(tensors: dict[str, torch.Tensor], *others: int) -> int:
    """The number that all elements are. Raises AssertionError if they differ."""
    numbers = {int(x) for tensor in tensors.values() for x in tensor.flatten().tolist()}
    assert len(numbers | set(others)) == 1, (numbers, others)
    return numbers.pop()


def snapshot() -> Publication:
    shared = StateSnapshot(weights_of(0))

    def write(number: int) -> None:
        # Longer and shorter in turn: the size is that of the same publication.
        more = {f"more {i}": torch.full((7,), float(number)) for i in range(number % 3)}
        shared.publish({**weights_of(number), **more}, {"version": number})

    def read() -> int:
        tensors, plain = shared.read()
        assert len(tensors) == 2 + plain["version"] % 3
        return only(tensors, plain["version"])

    return Publication(write, read)


def snapshot_version() -> Publication:
    shared = StateSnapshot(weights_of(0))
    return Publication(
        lambda number: shared.publish(weights_of(number), {"version": number}),
        lambda: shared.version,
    )


def weights() -> Publication:
    shared = SharedWeights(weights_of(0))

    def read() -> int:
        into = weights_of(-1)
        count, version = shared.read(into)
        assert count == version or count == version - 1, "a killed publication was not counted"
        return only(into, version)

    return Publication(lambda number: shared.publish(weights_of(number), number), read)


def weights_version() -> Publication:
    shared = SharedWeights(weights_of(0))
    write = lambda number: shared.publish(weights_of(number), number)  # noqa: E731
    return Publication(write, lambda: shared.version)


def weights_scalar() -> Publication:
    shared = SharedWeights({"scale": torch.tensor(0.0)})

    def write(number: int) -> None:
        shared.publish({"scale": torch.tensor(float(number))}, number)

    return Publication(write, lambda: int(shared.scalar("scale")))


PUBLICATIONS = [snapshot, snapshot_version, weights, weights_version, weights_scalar]


@pytest.mark.parametrize("new", PUBLICATIONS)
def test_a_killed_writer_leaves_the_old_value_and_its_successor_writes_the_new_one(
    new: Callable[[], Publication],
) -> None:
    check_killed_writers(new)


@pytest.mark.long
@pytest.mark.parametrize("new", PUBLICATIONS)
def test_a_reader_that_a_writer_overtakes_anywhere_finds_a_whole_value(
    new: Callable[[], Publication],
) -> None:
    check_overtaken_readers(new)


def test_a_state_that_does_not_fit_leaves_the_old_one() -> None:
    shared = StateSnapshot(weights_of(0))
    shared.publish(weights_of(1), {"version": 1})
    with pytest.raises(ValueError, match="room for"):
        shared.publish({"w": torch.zeros(shared.room)}, {"version": 2})
    assert shared.version == 1 and shared.read()[1]["version"] == 1
    shared.publish(weights_of(3), {"version": 3})
    assert only(shared.read()[0]) == 3


# ---- queues: what was put arrives once, whole and in order ----


class Queue:
    """A queue that is read at any instant. ``put(n)`` sends record n (from 0), the numbers of all
    records that arrived are in ``taken``."""

    def __init__(self, put: Callable[[int], object], take: Callable[[], list[int]]) -> None:
        self.put = put
        self._take = take
        self.taken: list[int] = []

    def take(self) -> None:
        self.taken += self._take()


def episode(number: int) -> EpisodeRecord:
    n = number
    return EpisodeRecord(1, n, n, float(n), n, n, n, n, float(n))


def episodes() -> Queue:
    shared = EpisodeQueue(2, capacity=4)

    def put(number: int) -> None:
        shared.put([episode(number)])

    def take() -> list[int]:
        records = shared.take()
        assert records == [episode(record.length) for record in records], "whole"
        return [record.length for record in records]

    return Queue(put, take)


def evaluations() -> Queue:
    shared = Evaluations(capacity=4, extra_bytes=32)

    def take() -> list[int]:
        found = shared.take()
        assert all(len({*each[:-1], each.extra["x"]}) == 1 for each in found), "whole"
        return [evaluation.episodes for evaluation in found]

    def put(number: int) -> None:
        shared.put(Evaluation._make([*[number] * 3, *[float(number)] * 5, {"x": float(number)}]))

    return Queue(put, take)


def ring() -> Queue:
    shared = IndexRings(2, capacity=4)

    def take() -> list[int]:
        found = []
        while (item := shared.peek(1)) is not None:
            assert shared.pop(1) == item
            found.append(item)
        return found

    return Queue(lambda number: shared.push(1, number), take)


QUEUES = [episodes, evaluations, ring]


@pytest.mark.parametrize("new", QUEUES)
def test_a_record_of_a_killed_writer_arrives_whole_or_not_at_all(new: Callable[[], Queue]) -> None:
    """And those of its successor arrive after it, also through a ring that begins again."""
    queues: list[Queue] = []

    def second() -> Callable[[], object]:
        queues.append(new())
        for number in range(6):
            queues[-1].put(number)
            queues[-1].take()
        queues[-1].put(6)
        return lambda: queues[-1].put(7)

    instants = 0
    for at in kills(second):
        instants += 1
        queue = queues.pop()
        live(lambda queue=queue: queue.put(8), at)  # type: ignore[misc]
        watched(lambda queue=queue: queue.put(9), queue.take)  # type: ignore[misc]
        assert queue.taken[:7] == list(range(7))
        assert queue.taken[7:] in ([9], [7, 9], [8, 9], [7, 8, 9]), queue.taken
        queue.put(10)
        queue.take()
        assert queue.taken[-2:] == [9, 10]
    assert instants >= 2, "before the record, and between it and the end of the queue"


@pytest.mark.parametrize("new", QUEUES)
def test_a_reader_that_a_writer_overtakes_loses_and_repeats_nothing(
    new: Callable[[], Queue],
) -> None:
    at, happened = 0, True
    while happened:
        at += 1
        queue = new()
        for number in range(5):
            queue.put(number)
            queue.take()
        queue.put(5)
        queue.put(6)

        def event(queue: Queue = queue) -> None:
            queue.put(7)
            live(lambda: queue.put(8), 2)
            queue.put(9)

        happened = met(queue.take, at, event)
        queue.take()
        arrived = [*range(8), 9] if happened else [*range(7)]
        assert [number for number in queue.taken if number != 8] == arrived
    assert at > 3, "instants"


# ---- texts that are written once ----


class Text:
    """A text that each worker writes once. ``put`` writes, ``get`` returns what a reader finds."""

    def __init__(self, put: Callable[[str], object], get: Callable[[], str | None]) -> None:
        self.put, self.get = put, get


def fault() -> Text:
    shared = FirstFault(2)
    return Text(lambda text: shared.put(1, text, 3.0), shared.get)


def note() -> Text:
    shared = Counters(("faults",), 2)
    return Text(lambda text: shared.note(1, text), lambda: shared.noted(1) or None)


@pytest.mark.parametrize("new", [fault, note])
def test_a_text_is_read_whole_or_not_at_all_and_the_first_complete_one_is_kept(
    new: Callable[[], Text],
) -> None:
    first, second = "the longer text of a worker that was killed", "a shorter one"
    made: list[Text] = []

    def life() -> Callable[[], object]:
        made.append(new())
        assert made[-1].get() is None
        return lambda: made[-1].put(first)

    instants = 0
    for _ in kills(life):
        instants += 1
        text = made.pop()
        found = text.get()
        assert found in (None, first)
        seen: list[str | None] = []
        watched(lambda text=text: text.put(second), lambda: seen.append(text.get()))  # type: ignore[misc]  # noqa: B023
        expected = [None, second] if found is None else [first]
        assert [x for i, x in enumerate(seen) if not i or seen[i - 1] != x] == expected
    assert instants >= 4, "instants"


def test_a_note_that_was_written_in_part_is_not_kept() -> None:
    """A kill in the middle of one store: part of the bytes is there."""
    counters = Counters(("faults",), 1)
    for written in (1, 7, Counters.NOTE_BYTES - 1):
        counters._arrays["notes"][0, 1 : 1 + written] = ord("x")
        assert counters.noted(0) == ""
    counters.note(0, "whole")
    counters.note(0, "later")
    assert counters.noted(0) == "whole"


def test_a_fault_that_was_written_in_part_is_not_kept() -> None:
    faults = FirstFault(1)
    faults._arrays["text"][0, : FAULT_BYTES // 2] = ord("x")
    assert faults.get() is None
    faults.put(0, "whole", 1.0)
    assert faults.get() == "whole"


# ---- single numbers ----


def numbers() -> dict[str, tuple[Callable[[], Any], Callable[[], float], float]]:
    """What counts, how it is read, and by how much it grows."""
    clock, restarts = TrainingClock(), RestartBudget(2, limit=100)
    return {
        "clock": (lambda: clock.advance(0.5), lambda: clock.seconds, 0.5),
        "restarts": (lambda: restarts.begin(1), lambda: restarts.total, 1),
        "life": (lambda: restarts.begin(1), lambda: restarts.life(1), 1),
    }


@pytest.mark.parametrize("name", list(numbers()))
def test_a_number_is_old_or_new_wherever_its_writer_is_killed(name: str) -> None:
    made: list[tuple[Callable[[], Any], Callable[[], float], float]] = []

    def life() -> Callable[[], object]:
        made.append(numbers()[name])
        made[-1][0]()
        return made[-1][0]

    instants = 0
    for _ in kills(life):
        instants += 1
        grow, read, by = made.pop()
        before = read()
        assert before in (by, 2 * by)
        seen: list[float] = []
        watched(grow, lambda: seen.append(read()))  # type: ignore[misc]  # noqa: B023
        assert set(seen) <= {before, before + by} and seen[-1] == before + by
    assert instants, "instants"


def test_the_restart_budget_is_kept_wherever_its_count_stops() -> None:
    budgets: list[RestartBudget] = []

    def life() -> Callable[[], object]:
        budgets.append(RestartBudget(3, limit=2))
        assert budgets[-1].begin(0)
        return lambda: budgets[-1].begin(2)

    for _ in kills(life):
        budget = budgets.pop()
        counted = budget.total
        assert [budget.begin(2) for _ in range(3)] == [counted < 2, False, False]
        assert budget.total == 2

"""Collectives between ranks: sums to the bit, in every order; and who is missing, by name."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sampleforge.peers import torch_group
from sampleforge.peers.group import RankGroup, RankLost
from sampleforge.peers.shm_group import (
    LEAST_ROOM,
    MemoryGroup,
    MemoryRendezvous,
    RankMemory,
    Silence,
)
from sampleforge.peers.torch_group import ProcessGroup
from sampleforge.runtime.processes import process_context
from tests.support.rank_threads import WAYS, BytesRead, on_ranks

ROUNDS = 300


def tensor_of(rank: int, round: int, numel: int) -> torch.Tensor:
    """What a rank has in a round: nothing that comes twice."""
    generator = torch.Generator().manual_seed(1000 * round + rank)
    return torch.randn(numel, generator=generator)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_reduce_all_gather_and_broadcast_give_every_rank_the_same(ranks: int, way: str) -> None:
    def work(group: RankGroup) -> None:
        for round in range(8):
            sums = [tensor_of(group.rank, 10 * round + i, 1 + 7 * i) for i in range(3)]
            waits = [group.all_reduce(tensor) for tensor in sums]
            numbers = torch.tensor([group.rank, round, 0.1])
            found = group.all_gather(numbers)  # while the sums are under way
            for wait in waits:
                wait()
            expected = [[rank, round, float(numbers[2])] for rank in range(ranks)]
            assert found.dtype == torch.float64 and found.tolist() == expected
            for i, found_sum in enumerate(sums):
                parts = [tensor_of(rank, 10 * round + i, 1 + 7 * i) for rank in range(ranks)]
                torch.testing.assert_close(found_sum, torch.stack(parts).sum(0))
        large = bytes(range(256)) * 1500
        for source in range(ranks):
            told = group.broadcast(large if group.rank == source else None, source)
            assert told == large

    on_ranks(ranks, work, way)


def test_all_reduce_gives_the_same_bits_on_all_ranks() -> None:
    def work(group: RankGroup) -> torch.Tensor:
        own = tensor_of(group.rank, 0, 1000).reshape(10, 100) * 10.0**group.rank
        group.all_reduce(own)()
        return own

    first, *others = on_ranks(4, work)
    assert all(torch.equal(first, other) for other in others)


def test_what_is_gathered_may_need_more_than_the_room() -> None:
    numel = LEAST_ROOM // 8 * 2 + 5

    def work(group: RankGroup) -> None:
        for round in range(3):
            found = group.all_gather(tensor_of(group.rank, round, numel).reshape(1, numel))
            parts = [tensor_of(rank, round, numel).double() for rank in range(2)]
            assert torch.equal(found, torch.stack(parts).reshape(2, 1, numel))

    on_ranks(2, work)


def literal_sum(round: int, ranks: int, numel: int) -> torch.Tensor:
    """The sum of `tensor_of` all ranks, one after the other."""
    first, *others = (tensor_of(rank, round, numel) for rank in range(ranks))
    for other in others:
        first += other
    return first


LARGE = 50_001
"""Numbers of a tensor that more than 8 ranks divide into shares, which do not all have a part."""


@pytest.mark.parametrize("ranks", [12, 32])
def test_each_of_many_ranks_sums_its_share_of_a_large_tensor(ranks: int) -> None:
    """The bits are those of the literal sum, and a rank reads two parts of the memory, with its own
    tensor three, in place of a part per rank."""
    sizes = (LARGE, 7, 2 * LARGE)

    def work(group: RankGroup) -> tuple[list[torch.Tensor], int]:
        for round in range(3):
            own = [tensor_of(group.rank, 10 * round + i, numel) for i, numel in enumerate(sizes)]
            with BytesRead() as read:
                waits = [group.all_reduce(tensor) for tensor in own]
                group.all_gather(torch.ones(2))  # while the sums are under way
                for wait in waits:
                    wait()
        return own, read.count

    parts = 4 * sum(sizes) + 1000 * ranks
    for found, read in on_ranks(ranks, work):
        for i, (numel, tensor) in enumerate(zip(sizes, found, strict=True)):
            assert torch.equal(tensor, literal_sum(20 + i, ranks, numel))
        assert read < 3 * parts


def test_ranks_that_lost_one_between_two_shares_sum_anew_in_the_next_group() -> None:
    """The lost rank had given its tensor and not summed its share. No other rank takes a sum of
    which a share is missing."""
    ranks, lost = 12, 5
    memory, noticed = RankMemory(ranks, 8 * LARGE), threading.Barrier(ranks)

    def rank(number: int) -> torch.Tensor:
        group = MemoryGroup(memory, number, 0, timeout=20)
        own = tensor_of(number, 0, LARGE)
        wait = group.all_reduce(own)
        if number != lost:
            with pytest.raises(RankLost, match=f"lost rank {lost} while averaging gradients"):
                wait()
            assert torch.equal(own, tensor_of(number, 0, LARGE))
        group.close()
        noticed.wait(60)
        again = MemoryGroup(memory, number, 1, timeout=20)
        again.all_reduce(own)()
        return own

    with ThreadPoolExecutor(ranks) as threads:
        sums = list(threads.map(rank, range(ranks)))
    assert all(torch.equal(found, literal_sum(0, ranks, LARGE)) for found in sums)


def test_the_rank_that_comes_last_wakes_the_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake-ups of a collective grow with the ranks, not with their square (here 66)."""
    monkeypatch.setattr("sampleforge.peers.shm_group.available_cores", lambda: [0])
    ranks, rounds, woken = 12, 10, []

    class Counted:
        def __init__(self, wakeup: Any) -> None:
            self._wakeup = wakeup
            self.wait = wakeup.wait

        def set(self) -> None:
            woken.append(1)
            self._wakeup.set()

    memory = RankMemory(ranks, LEAST_ROOM)
    memory.wakeups = [Counted(wakeup) for wakeup in memory.wakeups]  # type: ignore[misc]

    def rank(number: int) -> None:
        group = MemoryGroup(memory, number, 0, timeout=20)
        for _ in range(rounds):
            group.all_gather(torch.ones(1))

    with ThreadPoolExecutor(ranks) as threads:
        list(threads.map(rank, range(ranks)))
    assert rounds <= len(woken) <= 3 * ranks * (rounds + 1)


def test_more_ranks_than_cores_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them spins: all sleep until they are woken."""
    monkeypatch.setattr("sampleforge.peers.shm_group.available_cores", lambda: [0])

    def work(group: RankGroup) -> float:
        for round in range(50):
            assert group.all_gather(torch.tensor([float(round)]))[:, 0].tolist() == [round] * 6
        return group.waited

    assert min(on_ranks(6, work)) > 0


def collect(rendezvous: MemoryRendezvous, rounds: int, pipe: Connection) -> None:
    """In a process of its own: many collectives of all sizes; sends what went wrong, or None."""
    group = rendezvous.join(0)
    largest = rendezvous.memory.room // 5
    sizes = np.random.default_rng(0).integers(1, largest, rounds)  # the same on all
    for round, numel in enumerate(map(int, sizes)):
        own, few = tensor_of(group.rank, round, numel), torch.tensor([1.0, float(group.rank)])
        waits = group.all_reduce(few), group.all_reduce(own)
        if round % 7 == group.rank:
            time.sleep(0.002)  # whoever is late changes
        for wait in waits:
            wait()
        expected = literal_sum(round, group.size, numel)
        total = group.size * (group.size - 1) / 2
        if not torch.equal(own, expected) or few.tolist() != [group.size, total]:
            pipe.send(f"round {round} on rank {group.rank}: a wrong sum")
            return
    pipe.send(None)
    while pipe.recv() == "once more":
        try:
            group.all_reduce(torch.ones(1))()
        except RankLost as error:
            pipe.send(str(error))
    group.close()


def processes_of(memory: RankMemory, rounds: int) -> tuple[list[Any], list[Connection]]:
    context = process_context()
    started, pipes = [], []
    for rank in range(memory.ranks):
        ours, theirs = context.Pipe()
        args = (memory.rendezvous(rank, 60, "cpu"), rounds, theirs)
        started.append(context.Process(target=collect, args=args, daemon=True))  # type: ignore[attr-defined]
        started[-1].start()
        theirs.close()
        pipes.append(ours)
    return started, pipes


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize(
    ("ranks", "room", "rounds"), [(3, LEAST_ROOM, ROUNDS), (12, 4 * LEAST_ROOM, 4)]
)
def test_all_reduce_between_processes_is_exact(ranks: int, room: int, rounds: int) -> None:
    memory = RankMemory(ranks, room)
    started, pipes = processes_of(memory, rounds)
    assert [pipe.recv() for pipe in pipes] == [None] * ranks
    for pipe in pipes:
        pipe.send("end")
    for process in started:
        process.join()


class NcclInPlace:
    """A group of torch's in the place of nccl's, whose waits end at once: its work is done."""

    def allgather(self, into: list[list[torch.Tensor]], own: list[torch.Tensor]) -> Any:
        for place in into[0]:
            place.copy_(own[0])
        return SimpleNamespace(wait=lambda: None)


def test_a_rank_of_nccl_does_not_say_how_long_it_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not know: only the GPU waits."""
    monkeypatch.setattr(torch_group, "_process_group", lambda *args: NcclInPlace())
    store = dist.HashStore()  # type: ignore[attr-defined]
    groups = [
        ProcessGroup(store, 0, 1, backend=backend) for backend in get_args(torch_group.Backend)
    ]
    for group in groups:
        assert group.all_gather(torch.ones(2)).tolist() == [[1.0, 1.0]]
    gloo, nccl = groups
    assert gloo.waited >= 0.0 and math.isnan(nccl.waited)


@pytest.mark.multiprocess(timeout=120)
def test_a_killed_rank_is_noticed_at_once_and_the_other_ranks_can_form_a_new_group() -> None:
    memory = RankMemory(3, LEAST_ROOM)
    started, pipes = processes_of(memory, 1)
    assert [pipe.recv() for pipe in pipes] == [None] * 3
    os.kill(started[1].pid, signal.SIGKILL)
    pipes[0].send("once more")
    assert pipes[0].poll(20), "the time-out is 60 s"
    expected = "rank 0 of 3 lost rank 1 while averaging gradients: its process has ended"
    assert pipes[0].recv() == expected
    for pipe in (pipes[0], pipes[2]):
        pipe.send("end")
    for process in started:
        process.join()
    with ThreadPoolExecutor(3) as threads:
        joined = list(threads.map(lambda r: MemoryGroup(memory, r, 1, timeout=20), range(3)))
        ones = torch.ones(1)
        found = list(threads.map(lambda group: float(group.all_gather(ones).sum()), joined))
    assert found == [3.0] * 3


def test_a_silent_rank_is_named_after_the_timeout() -> None:
    noticed = threading.Event()

    def work(group: RankGroup) -> str:
        if group.rank == 1:
            assert noticed.wait(60), "a rank that ends has left, and is not silent"
            return "silent"
        try:
            with pytest.raises(RankLost) as error:
                group.all_gather(torch.ones(1))
        finally:
            noticed.set()
        return str(error.value)

    found = on_ranks(2, work, timeout=2.0)  # also that of the threads to find each other
    assert found[0] == (
        "rank 0 of 2 lost rank 1 while gathering statistics: it was silent for 2 s (--rank-timeout)"
    )


def test_silence_goes_on_in_the_group_that_is_formed_meanwhile() -> None:
    """A rank that stands still is lost after the time-out even if others are replaced faster."""
    memory = RankMemory(3, LEAST_ROOM)
    rendezvous = [memory.rendezvous(rank, 20, "cpu") for rank in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each.join(0), rendezvous))
    waiting = rendezvous[0]
    assert waiting.silence.add(2, int(memory.arrays["arrived"][2, 0]), 19.5) == 19.5
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        joining = threads.submit(waiting.join, 1)
        with pytest.raises(RankLost, match="lost rank 2 while finding each other") as error:
            joining.result()
    assert error.value.silent == 2
    assert time.monotonic() - began < 10, "the 19.5 s of the group before count"
    with ThreadPoolExecutor(3) as threads:  # and its successor has all of the time
        list(threads.map(lambda each: each.join(2), rendezvous))


def test_silence_begins_anew_with_each_sign_of_a_rank() -> None:
    silence = Silence()
    assert silence.add(1, 5, 2.0) == 2.0
    assert silence.add(2, 5, 1.0) == 1.0
    assert silence.add(1, 5, 2.5) == 4.5
    assert silence.add(1, 6, 0.5) == 0.5, "it has arrived somewhere since"
    silence.forget(1)
    assert silence.add(1, 6, 0.25) == 0.25
    assert silence.add(2, 5, 1.0) == 2.0


def test_a_pause_of_the_waiting_rank_is_not_silence_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.monotonic()

    def clock() -> float:
        now = time.monotonic()
        return now + (1000.0 if now > began + 0.3 else 0.0)

    monkeypatch.setattr("sampleforge.peers.shm_group.monotonic", clock)

    def work(group: RankGroup) -> float:
        if group.rank == 1:
            time.sleep(1.0)
        return float(group.all_gather(torch.ones(1)).sum())

    assert on_ranks(2, work, timeout=30) == [2.0, 2.0]


def test_a_missing_rank_is_named() -> None:
    memory = RankMemory(2, LEAST_ROOM)
    with pytest.raises(RankLost, match="rank 1 of 2 lost rank 0 while finding each other"):
        memory.rendezvous(1, 0.2, "cpu").join(0)


def test_ranks_do_not_wait_for_a_rank_that_has_left() -> None:
    def work(group: RankGroup) -> str:
        if group.rank == 1:
            return "left"
        with pytest.raises(RankLost) as error:
            group.all_gather(torch.ones(1))
        return str(error.value)

    assert on_ranks(2, work)[0].endswith("lost rank 1 while gathering statistics: it has left")


def test_waiting_for_a_replaced_rank_raises_rank_lost() -> None:
    """Two ranks wait for each other; one is replaced, and the replacement counts from elsewhere."""
    memory = RankMemory(2, LEAST_ROOM)
    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(lambda rank: MemoryGroup(memory, rank, 0, timeout=20), range(2)))
        waiting = threads.submit(groups[0].all_gather, torch.ones(1))
        replacement = threads.submit(MemoryGroup, memory, 1, 1, timeout=20)
        with pytest.raises(RankLost, match=r"lost rank 1 while gathering .*: it was replaced"):
            waiting.result()
        MemoryGroup(memory, 0, 1, timeout=20)
        replacement.result()


def test_nbytes_of_the_rank_memory_is_its_size() -> None:
    """Two halves of every rank's part, and four lines each."""
    memory = RankMemory(2, 100_000)
    assert memory.room >= 100_000
    assert memory.nbytes == 2 * 2 * memory.room + 4 * 2 * 64

"""Wake-ups between processes: none is lost, and they are few descriptors however many there are."""

from __future__ import annotations

import os
import threading
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from time import monotonic
from typing import Any

import pytest

from sampleforge.runtime.processes import process_context
from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.wakeup import FutexWakeup, PipeWakeup, Wakeup, wakeups
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import build

BOTH = pytest.mark.parametrize("kind", [FutexWakeup, PipeWakeup])
MOST_DESCRIPTORS = 256
"""Of one message of the fork server (multiprocessing.forkserver.MAXFDS_TO_SEND)."""


@BOTH
def test_a_wakeup_is_remembered_once(kind: type[Wakeup]) -> None:
    wakeup = kind()
    assert not wakeup.wait(0)
    wakeup.set()
    wakeup.set()
    assert wakeup.wait(10)
    assert not wakeup.wait(0)
    for _ in range(70_000):  # a full pipe
        wakeup.set()
    assert wakeup.wait(10)
    assert not wakeup.wait(0)


@BOTH
def test_a_wait_ends_after_its_time_and_not_before(kind: type[Wakeup]) -> None:
    wakeup, started = kind(), monotonic()
    assert not wakeup.wait(0.25)
    assert 0.24 < monotonic() - started < 30


@BOTH
def test_a_wakeup_ends_a_wait(kind: type[Wakeup]) -> None:
    wakeup, started = kind(), monotonic()
    timer = threading.Timer(0.1, wakeup.set)
    timer.start()
    assert wakeup.wait(60)
    timer.join()
    assert monotonic() - started < 30


@BOTH
def test_a_wait_that_begins_in_a_loop_ends_as_any_other(kind: type[Wakeup]) -> None:
    wakeup = kind()
    wakeup.set()
    assert wakeup.wait(60, spin=30)
    assert not wakeup.wait(0, spin=0.01)
    timer = threading.Timer(0.05, wakeup.set)
    timer.start()
    assert wakeup.wait(60, spin=30), "set in the loop"
    timer.join()
    timer = threading.Timer(0.05, wakeup.set)
    timer.start()
    assert wakeup.wait(60, spin=0.001), "set after it"
    timer.join()


def test_wakeups_of_one_memory_are_independent() -> None:
    first, second, third = wakeups(3)
    second.set()
    assert [first.wait(0), second.wait(0), third.wait(0)] == [False, True, False]


def set_repeatedly(wakeup: Wakeup, done: SharedArrays, index: int, times: int) -> None:
    for count in range(1, times + 1):
        done["done"][index, 0] = count
        wakeup.set()


@pytest.mark.multiprocess
def test_no_wakeup_is_lost_among_several_setters() -> None:
    """The waiter sleeps for a minute at a time: a wake-up that were lost would show."""
    setters, times, wakeup = 3, 3000, Wakeup()
    done = SharedArrays({"done": ((setters, 8), "int64")})
    processes = [
        process_context().Process(  # type: ignore[attr-defined]
            target=set_repeatedly, args=(wakeup, done, index, times)
        )
        for index in range(setters)
    ]
    for process in processes:
        process.start()
    while done["done"][:, 0].sum() < setters * times:
        assert wakeup.wait(60), "a wake-up was lost"
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
        process.close()


def set_all(sent: list[Wakeup]) -> None:
    for wakeup in sent:
        wakeup.set()


@pytest.mark.multiprocess
def test_a_process_takes_more_wakeups_than_there_may_be_descriptors_in_a_message() -> None:
    sent = wakeups(2 * MOST_DESCRIPTORS)
    process = process_context().Process(target=set_all, args=(sent,))  # type: ignore[attr-defined]
    process.start()
    assert all(wakeup.wait(60) for wakeup in sent)
    process.join(60)
    assert process.exitcode == 0
    process.close()


class CountsDescriptors:
    """Stands for the start of a process, which is sent descriptors."""

    DupFd = int

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return len(self.fds) - 1


def descriptors(sent: Any) -> int:
    """Return how many descriptors a process needs that is sent these objects."""
    counts: Any = CountsDescriptors()
    set_spawning_popen(counts)
    try:
        ForkingPickler.dumps(sent)
    finally:
        set_spawning_popen(None)
    return len(counts.fds)


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_workers_of_many_actors_need_few_descriptors(inference: Any) -> None:
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=300,
        num_envs_per_worker=1,
        num_splits=1,
        rollout=4,
        async_rl=True,
        batch_size=4 * 300,
        minibatch_size=None,
        inference=inference,
    )
    graph, _ = build(config)
    needed = {node.name: descriptors((node.worker, graph.stop)) for node in graph.nodes}
    assert len(needed) > 300
    assert max(needed.values()) < 40, needed


def test_memory_has_no_name_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it reserves memory leaves no name in /dev/shm."""
    before = set(os.listdir("/dev/shm"))
    during: list[set[str]] = []
    reserve = os.posix_fallocate

    def look(fd: int, offset: int, size: int) -> None:
        during.append(set(os.listdir("/dev/shm")))
        reserve(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", look)
    SharedArrays({"x": ((1000,), "int64")})
    assert during
    own = f"torch_{os.getpid()}_"
    assert not [name for name in during[0] - before if name.startswith(own)]

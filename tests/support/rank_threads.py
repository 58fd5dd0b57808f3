"""Ranks as threads of this process, each with a group of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch.distributed as dist

from sampleforge.peers.group import RankGroup
from sampleforge.peers.shm_group import MemoryGroup, RankMemory
from sampleforge.peers.torch_group import ProcessGroup

T = TypeVar("T")


WAYS = ("memory", "gloo")
ROOM = 1 << 20


def on_ranks(
    count: int, work: Callable[[RankGroup], T], way: str = "memory", timeout: float = 20.0
) -> list[T]:
    """What ``work`` returns on each of ``count`` ranks, which are joined in the given way. The
    first exception is raised."""
    memory, store = RankMemory(count, ROOM), dist.HashStore()  # type: ignore[attr-defined]

    def join(number: int) -> RankGroup:
        if way == "memory":
            return MemoryGroup(memory, number, 0, timeout=timeout)
        return ProcessGroup(store, number, count, timeout=timeout)

    def rank(number: int) -> T:
        group = join(number)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(rank, range(count)))

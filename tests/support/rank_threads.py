"""Ranks as threads of this process, each with a group of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from sampleforge.peers.group import RankGroup
from sampleforge.peers.shm_group import MemoryGroup, RankMemory
from sampleforge.peers.torch_group import ProcessGroup

T = TypeVar("T")


WAYS = ("memory", "gloo")
ROOM = 1 << 20


def on_ranks(
    count: int,
    work: Callable[[RankGroup], T],
    way: str = "memory",
    timeout: float = 20.0,
    room: int = ROOM,
) -> list[T]:
    """What ``work`` returns on each of ``count`` ranks, which are joined in the given way. The
    first exception is raised."""
    memory, store = RankMemory(count, room), dist.HashStore()  # type: ignore[attr-defined]

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


class BytesRead(TorchDispatchMode):
    """Counts the bytes of the tensors that are copied from, or added to others, in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.add_):
            self.count += args[1].nbytes
        return func(*args, **(kwargs or {}))

"""Ranks as threads of this process, each with a process group of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch.distributed as dist

from sampleforge.data.ranks import RankGroup

T = TypeVar("T")


def on_ranks(count: int, work: Callable[[RankGroup], T], timeout: float = 20.0) -> list[T]:
    """What ``work`` returns on each of ``count`` ranks. The first exception is raised."""
    store = dist.HashStore()

    def rank(number: int) -> T:
        group = RankGroup(store, number, count, timeout=timeout)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(rank, range(count)))

"""Rings of indices in shared memory: one process pushes, one pops, nobody locks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import SharedArrays


class IndexRings:
    """``count`` independent rings of small integers, each with a single producer and a single
    consumer.

    The producer alone moves a ring's tail, the consumer alone its head, and an item is written
    before the tail moves past it, so a process killed at any point leaves the ring whole. (The
    order of stores is x86's and that of every machine after a system call; a `Wakeup` follows each
    push.)
    """

    def __init__(self, count: int, capacity: int) -> None:
        self._capacity = capacity
        self._arrays = SharedArrays(
            {
                "items": ((count, capacity), "int64"),
                # One cache line each: producer and consumer do not share one.
                "head": ((count, 8), "int64"),
                "tail": ((count, 8), "int64"),
            }
        )
        self._attach()

    def _attach(self) -> None:
        self._items: npt.NDArray[np.int64] = self._arrays["items"]
        self._head: npt.NDArray[np.int64] = self._arrays["head"]
        self._tail: npt.NDArray[np.int64] = self._arrays["tail"]

    def push(self, ring: int, item: int) -> None:
        """Append an item. The capacity is the number of items there are, so it never overflows."""
        tail = self._tail[ring, 0]
        assert tail - self._head[ring, 0] < self._capacity, f"ring {ring} overflows"
        self._items[ring, tail % self._capacity] = item
        self._tail[ring, 0] = tail + 1

    def pop(self, ring: int) -> int | None:
        """Take the oldest item, or None if there is none."""
        head = self._head[ring, 0]
        if head == self._tail[ring, 0]:
            return None
        item = int(self._items[ring, head % self._capacity])
        self._head[ring, 0] = head + 1
        return item

    def peek(self, ring: int) -> int | None:
        """The oldest item, which stays, or None. What is marked as taken before it is popped is
        never lost to a kill between the two."""
        head = self._head[ring, 0]
        if head == self._tail[ring, 0]:
            return None
        return int(self._items[ring, head % self._capacity])

    def waiting(self, ring: int) -> set[int]:
        """All items in a ring, as its producer or its consumer sees them."""
        head, tail = int(self._head[ring, 0]), int(self._tail[ring, 0])
        return {int(self._items[ring, at % self._capacity]) for at in range(head, tail)}

    def clear(self) -> None:
        """Empty all rings, which nobody else may be using."""
        self._head[...] = 0
        self._tail[...] = 0

    def size(self, ring: int) -> int:
        """How many items wait in a ring."""
        return int(self._tail[ring, 0] - self._head[ring, 0])

    def total(self) -> int:
        """How many items wait in all rings together."""
        return int((self._tail[:, 0] - self._head[:, 0]).sum())

    def __getstate__(self) -> tuple[int, SharedArrays]:
        return self._capacity, self._arrays

    def __setstate__(self, state: tuple[int, SharedArrays]) -> None:
        self._capacity, self._arrays = state
        self._attach()

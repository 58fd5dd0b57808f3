"""Lock-free rings of indices in shared memory, each with one producer and one consumer process.

They rely on the order of stores that x86 guarantees: another core sees the stores of one core in
program order, so a consumer that sees a new tail also sees the item before it. Python has no memory
fence to enforce this elsewhere; see `check_store_order`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import SharedArrays, SharedViews

ORDERED_STORES = ("x86_64", "amd64", "i386", "i686", "x86")
"""Machines, as `platform.machine` names them in lower case, on which stores become visible in
program order."""


def check_store_order() -> str | None:
    """Return a warning if this machine may reorder stores, which `IndexRings` and the other
    lock-free records in shared memory do not allow for; None on x86."""
    machine = platform.machine()
    if machine.lower() in ORDERED_STORES:
        return None
    return (
        f"this machine is {machine or 'of an unknown type'}, not x86: it may reorder writes to "
        "shared memory, on whose order the workers' queues rely; use --serial if a run hangs or "
        "fails"
    )


def next_in_turn(candidates: npt.NDArray[np.intp], turn: int) -> int:
    """Return the one of the ``candidates`` (ascending, at least one) whose turn it is: the first
    from ``turn`` on, or the smallest if there is none."""
    return int(candidates[candidates.searchsorted(turn) % len(candidates)])


class IndexRings(SharedViews):
    """``count`` independent rings of small integers, each with a single producer and a single
    consumer.

    Only the producer moves a ring's tail, only the consumer its head, and an item is written before
    the tail moves past it. A process that is killed at any point therefore leaves the ring
    consistent. The order of these stores is x86's; on other machines the only order is that of the
    system call of the `Wakeup` that follows each push, and a consumer that polls without waiting
    for the `Wakeup` may read an item too early.
    """

    def __init__(self, count: int, capacity: int) -> None:
        self._capacity = capacity
        self._arrays = SharedArrays(
            {
                "items": ((count, capacity), "int64"),
                # A cache line each, so that producer and consumer do not share one.
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
        """Append an item. The capacity is the largest number of items that can be in the ring, so
        that it never overflows."""
        tail = self._tail[ring, 0]
        assert tail - self._head[ring, 0] < self._capacity, f"ring {ring} overflows"
        self._items[ring, tail % self._capacity] = item
        self._tail[ring, 0] = tail + 1

    def pop(self, ring: int) -> int | None:
        """Remove and return the oldest item, or return None if there is none."""
        head = self._head[ring, 0]
        if head == self._tail[ring, 0]:
            return None
        item = int(self._items[ring, head % self._capacity])
        self._head[ring, 0] = head + 1
        return item

    def peek(self, ring: int) -> int | None:
        """Return the oldest item without removing it, or None. A consumer that marks an item as
        taken before it pops it does not lose the item if it is killed between the two."""
        head = self._head[ring, 0]
        if head == self._tail[ring, 0]:
            return None
        return int(self._items[ring, head % self._capacity])

    def filled(self, begin: int, count: int) -> npt.NDArray[np.intp]:
        """Return which of the ``count`` rings from ``begin`` on have items, in ascending order: 0
        for ring ``begin``. This is one comparison of arrays, so that a consumer of hundreds of
        rings does not have to look into each."""
        rings = slice(begin, begin + count)
        return np.flatnonzero(self._tail[rings, 0] != self._head[rings, 0])

    def pushed(self, ring: int) -> int:
        """Return how many items were ever appended to a ring, as its producer sees it."""
        return int(self._tail[ring, 0])

    def popped(self, ring: int) -> int:
        """Return how many items were ever removed from a ring, as its consumer sees it."""
        return int(self._head[ring, 0])

    def in_order(self, ring: int, skip: int = 0) -> list[int]:
        """Return the items in a ring, oldest first, as its producer or its consumer sees them, but
        for the ``skip`` oldest."""
        head, tail = int(self._head[ring, 0]) + skip, int(self._tail[ring, 0])
        return [int(self._items[ring, at % self._capacity]) for at in range(head, tail)]

    def waiting(self, ring: int, skip: int = 0) -> set[int]:
        """Return the items of `in_order` as a set."""
        return set(self.in_order(ring, skip))

    def waiting_in(self, rings: Iterable[int]) -> set[int]:
        """Return the items that wait in any of these rings."""
        return set().union(*map(self.waiting, rings))

    def clear(self) -> None:
        """Empty all rings. No other process may use them at the same time."""
        self._head[...] = 0
        self._tail[...] = 0

    def size(self, ring: int) -> int:
        """Return the number of items in a ring."""
        return int(self._tail[ring, 0] - self._head[ring, 0])

    def total(self) -> int:
        """Return the number of items in all rings together."""
        return int((self._tail[:, 0] - self._head[:, 0]).sum())

"""Progress boards: the progress of every rank with sampling, which the other ranks read without
waiting."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sampleforge.shared.arrays import SharedArrays

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Board(Protocol):
    """A number (mark) for every rank, which only that rank raises and all ranks read without
    waiting. The meaning of the marks is that of `sampleforge.workers.preemption`. ``latency``:
    seconds until a mark is visible to other ranks."""

    latency: float

    def mark(self, rank: int, mark: int) -> None: ...

    def reached(self, mark: int) -> int:
        """Return the number of ranks that are known to have reached ``mark``."""

    def missing(self, mark: int) -> list[int] | None:
        """Return the ranks that have not reached ``mark``; None if that cannot be known now."""


class RolloutBoard:
    """A board in shared memory, with a cache line and a single writer per rank. All marks are 0 at
    first."""

    latency = 0.0

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._arrays = SharedArrays({"marks": ((ranks, 8), "int64")})

    def mark(self, rank: int, mark: int) -> None:
        self._arrays["marks"][rank, 0] = mark

    def reached(self, mark: int) -> int:
        return int((self._arrays["marks"][:, 0] >= mark).sum())

    def missing(self, mark: int) -> list[int]:
        reached = self._arrays["marks"][:, 0] >= mark
        return [rank for rank in range(self._ranks) if not reached[rank]]


INTERVAL = 0.01
"""Seconds between two polls of the store while marks are asked for. A poll is a round trip."""
FRESH = 1.0
"""Seconds that `StoreBoard.missing` waits for a poll."""


class StoreBoard:
    """A board over a torch ``store``, which it owns.

    A thread talks to the store, because a store that is cut off may not answer for minutes, and
    that must not hold up the rank. Marks that are unknown do not preempt a rank.
    """

    latency = INTERVAL

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._keys = [f"mark/{other}" for other in range(ranks)]
        self._latest = np.zeros(ranks, np.int64)
        self._published = 0
        self._poll_wanted = threading.Event()
        self._polled = threading.Condition()
        self._polls = 0
        self._closed = threading.Event()
        self._problem = False
        self._thread = threading.Thread(target=self._run, name="rollout board", daemon=True)
        self._thread.start()

    def mark(self, rank: int, mark: int) -> None:
        assert rank == self._rank, "a rank may raise its own mark only"
        self._latest[rank] = mark
        self._poll_wanted.set()

    def reached(self, mark: int) -> int:
        """Return the number of ranks that are known to have reached ``mark``."""
        self._poll_wanted.set()
        return int((self._latest >= mark).sum())

    def missing(self, mark: int) -> list[int] | None:
        """Return the ranks that have not reached ``mark``, or None if the store does not answer."""
        give_up_at = monotonic() + FRESH
        with self._polled:
            enough = self._polls + 2  # the first of them may have begun before this call
            while self._polls < enough and not self._problem:
                self._poll_wanted.set()
                if not self._polled.wait(give_up_at - monotonic()):
                    return None
        if self._problem:
            return None
        return [rank for rank, latest in enumerate(self._latest.tolist()) if latest < mark]

    def close(self) -> None:
        """End the thread, unless it hangs in a store that is cut off."""
        self._closed.set()
        self._poll_wanted.set()
        self._thread.join(FRESH)

    def _run(self) -> None:
        try:
            self._store.set(self._keys[self._rank], "0")
            self._store.wait(self._keys)
            while not self._closed.wait(INTERVAL):
                self._poll_wanted.wait()
                self._poll_wanted.clear()
                self._poll()
        except RuntimeError:  # the store is gone: the collectives will fail, with a better message
            self._problem = True
        with self._polled:
            self._polled.notify_all()

    def _poll(self) -> None:
        own = int(self._latest[self._rank])
        if own != self._published:
            self._store.set(self._keys[self._rank], str(own))
            self._published = own
        for rank, latest in enumerate(self._store.multi_get(self._keys)):
            if rank != self._rank:
                self._latest[rank] = int(latest)
        with self._polled:
            self._polls += 1
            self._polled.notify_all()

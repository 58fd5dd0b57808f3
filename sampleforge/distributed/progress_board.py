"""How far everybody is with sampling: what ranks of one machine tell each other without waiting."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sampleforge.shared.arrays import SharedArrays

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Board(Protocol):
    """A mark for every rank, which only that rank moves; read without waiting. What the marks mean
    is for those to say who use it: see `sampleforge.workers.preemption`. ``latency``: seconds until
    others know of it."""

    latency: float

    def mark(self, rank: int, mark: int) -> None: ...

    def reached(self, mark: int) -> int:
        """How many ranks are known to have come so far."""

    def missing(self, mark: int) -> list[int] | None:
        """The ranks that have not; None if that cannot be known now."""


class RolloutBoard:
    """In shared memory, a cache line and a single writer per rank. All marks are 0 at first."""

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
"""Seconds between two looks at the store, while somebody wants to know. A look is a round trip."""
FRESH = 1.0
"""Seconds that `StoreBoard.missing` waits for a look."""


class StoreBoard:
    """`RolloutBoard` over a torch ``store`` that belongs to it.

    A thread does the talking: a store that is cut off answers neither yes nor no, for minutes, and
    must not hold up a rank. What is not known does not pre-empt anybody.
    """

    latency = INTERVAL

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._keys = [f"mark/{other}" for other in range(ranks)]
        self._latest = np.zeros(ranks, np.int64)
        self._told = 0
        self._wanted = threading.Event()
        self._looked = threading.Condition()
        self._looks = 0
        self._closed = threading.Event()
        self._problem = False
        self._thread = threading.Thread(target=self._talk, name="rollout board", daemon=True)
        self._thread.start()

    def mark(self, rank: int, mark: int) -> None:
        assert rank == self._rank, "everybody for himself"
        self._latest[rank] = mark
        self._wanted.set()

    def reached(self, mark: int) -> int:
        """How many ranks are known to have come so far."""
        self._wanted.set()
        return int((self._latest >= mark).sum())

    def missing(self, mark: int) -> list[int] | None:
        """The ranks that have not, or None if the store does not answer."""
        give_up_at = monotonic() + FRESH
        with self._looked:
            enough = self._looks + 2  # the first of them may have begun before
            while self._looks < enough and not self._problem:
                self._wanted.set()
                if not self._looked.wait(give_up_at - monotonic()):
                    return None
        if self._problem:
            return None
        return [rank for rank, latest in enumerate(self._latest.tolist()) if latest < mark]

    def close(self) -> None:
        """End the thread, unless it hangs in a store that is cut off."""
        self._closed.set()
        self._wanted.set()
        self._thread.join(FRESH)

    def _talk(self) -> None:
        try:
            self._store.set(self._keys[self._rank], "0")
            self._store.wait(self._keys)
            while not self._closed.wait(INTERVAL):
                self._wanted.wait()
                self._wanted.clear()
                self._look()
        except RuntimeError:  # the store has gone: the collectives will find out, and say more
            self._problem = True
        with self._looked:
            self._looked.notify_all()

    def _look(self) -> None:
        own = int(self._latest[self._rank])
        if own != self._told:
            self._store.set(self._keys[self._rank], str(own))
            self._told = own
        for rank, latest in enumerate(self._store.multi_get(self._keys)):
            if rank != self._rank:
                self._latest[rank] = int(latest)
        with self._looked:
            self._looks += 1
            self._looked.notify_all()

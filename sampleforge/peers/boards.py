"""What the ranks of a run tell each other without waiting: the epoch of their group, which is the
number of times that it was formed again because a rank had died, with the updates that were lost by
that; and the progress of every rank with sampling."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.newest import COUNTS, Halves

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class GroupResumed(NamedTuple):
    """The report that a new group resumes from policy ``version``. ``lost`` later gradient steps
    were lost with the ranks that had made them. ``number`` counts reports from 1; 0 means that
    there was none."""

    number: int
    version: int
    lost: int


class GroupEpoch:
    """Numbers the groups that the ``ranks`` of a run form one after the other; ``generation``
    counts from 0.

    Only the driver begins a new generation, at most ``limit`` times. The ranks read it in shared
    memory, where they also write the version that they have agreed on."""

    def __init__(self, limit: int, ranks: int) -> None:
        self.limit = limit
        self._arrays = SharedArrays(
            {
                "generation": ((1,), "int64"),
                "agreed": ((ranks, 8), "int64"),  # a cache line and a single writer per rank
                "has_batch": ((ranks, 8), "int64"),
                "resumed": ((2, 2), "int64"),  # version and lost steps, in two halves
                **COUNTS,
            }
        )
        self._halves = Halves(self._arrays)

    @property
    def generation(self) -> int:
        return int(self._arrays["generation"][0])

    def begin(self) -> bool:
        """Have all ranks form a new group; return False if the limit is reached."""
        if self.generation >= self.limit:
            return False
        self._arrays["generation"][0] += 1
        return True

    def life(self, worker: int) -> int:
        """Return the number by which a rank that starts now seeds other episodes than its
        predecessors."""
        return self.generation

    @property
    def agreed_version(self) -> int:
        """The highest policy version that all ranks have agreed on and that was not lost since."""
        return int(self._arrays["agreed"][:, 0].max())

    def set_agreed_version(self, rank: int, version: int) -> None:
        """Record, from ``rank``, that all ranks have agreed on ``version``."""
        self._arrays["agreed"][rank, 0] = version

    def mark_batch(self, rank: int, iteration: int) -> bool:
        """Record, from ``rank``, that it has its part of the batch of ``iteration`` (from 1; 0: it
        has none). Return whether all ranks have theirs."""
        marks = self._arrays["has_batch"][:, 0]
        marks[rank] = iteration
        return bool(marks.min() >= iteration)

    @property
    def resumed(self) -> GroupResumed:
        """The latest report of `report_resumed`."""
        number, report = self._halves.read(lambda half: self._arrays["resumed"][half].tolist())
        return GroupResumed(number, *report)

    def report_resumed(self, version: int, lost: int) -> None:
        """Report, from one rank, that the new group resumes from ``version`` and has lost ``lost``
        gradient steps."""
        self._arrays["resumed"][self._halves.begin()] = version, lost
        self._halves.publish()


class Board(Protocol):
    """A number (mark) for every rank, which only that rank raises and all ranks read without
    waiting. The meaning of the marks is that of `sampleforge.workers.rank`. ``latency``:
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

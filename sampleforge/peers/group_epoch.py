"""The epoch of a group of ranks: the number of times that it was formed again because a rank had
died, and the updates that were lost by that."""

from __future__ import annotations

from typing import NamedTuple

from sampleforge.shared.arrays import SharedArrays
from sampleforge.shared.newest import COUNTS, Halves


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

"""How often a group of ranks has been formed anew, because one had died and was replaced, and what
was lost by that."""

from __future__ import annotations

from typing import NamedTuple

from sampleforge.shared.arrays import SharedArrays


class GroupResumed(NamedTuple):
    """A new group goes on from ``version``; ``lost`` later gradient steps are gone with the ranks
    that had made them. ``number`` counts such reports from 1; 0: there was none."""

    number: int
    version: int
    lost: int


class GroupEpoch:
    """``generation`` counts the groups from 0. The driver alone begins a new one, at most ``limit``
    times; the ``ranks`` see it in shared memory, and leave there how far they have come."""

    def __init__(self, limit: int, ranks: int) -> None:
        self.limit = limit
        self._arrays = SharedArrays(
            {
                "generation": ((1,), "int64"),
                "learned": ((ranks, 8), "int64"),  # a cache line and a single writer per rank
                "gone_on": ((3,), "int64"),
            }
        )

    @property
    def generation(self) -> int:
        return int(self._arrays["generation"][0])

    def begin(self) -> bool:
        """Have all ranks form a new group; False if that has happened too often."""
        if self.generation >= self.limit:
            return False
        self._arrays["generation"][0] += 1
        return True

    def life(self, worker: int) -> int:
        """What tells the episodes of a rank that starts now from those of its predecessors."""
        return self.generation

    @property
    def learned(self) -> int:
        """The highest version that all ranks have agreed on, and none has reported as lost."""
        return int(self._arrays["learned"][:, 0].max())

    def learn(self, rank: int, version: int) -> None:
        """All ranks have agreed on ``version``, says ``rank``."""
        self._arrays["learned"][rank, 0] = version

    @property
    def gone_on(self) -> GroupResumed:
        """The latest report of `go_on`."""
        return GroupResumed(*self._arrays["gone_on"].tolist())

    def go_on(self, version: int, lost: int) -> None:
        """Report, from one rank, that the new group goes on from ``version``."""
        self._arrays["gone_on"][1:] = version, lost
        self._arrays["gone_on"][0] += 1  # last: a report that is half written is not there

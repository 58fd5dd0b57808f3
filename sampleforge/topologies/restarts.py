"""What the death of a worker means for the run: one rule per node of the graph."""

from __future__ import annotations

from typing import Protocol

from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.shared.restart_budget import RestartBudget


class RestartRule(Protocol):
    """Asked by the supervisor when a node's process was killed or hangs.

    ``counts_itself``: the worker counts its restarts in its own counter row.
    """

    counts_itself: bool

    def begin_next_life(self) -> str | None:
        """Count another life of the node. Returns how many there have been, for the user ("2 of 10
        times"), or None if the node is not restarted: the run ends."""

    def news(self) -> str | None:
        """Return what the user is to know of the latest restart, once, or None."""


class EndRun:
    """The run cannot go on without the node."""

    counts_itself = False

    def begin_next_life(self) -> str | None:
        return None

    def news(self) -> str | None:
        return None


END_RUN = EndRun()


class RestartAlone:
    """Restart worker ``index`` of a budget that it shares with its kind, and no other worker."""

    counts_itself = False

    def __init__(self, budget: RestartBudget, index: int) -> None:
        self._budget = budget
        self._index = index

    def begin_next_life(self) -> str | None:
        if not self._budget.begin(self._index):
            return None
        return f"{self._budget.total} of {self._budget.limit} times"

    def news(self) -> str | None:
        return None


class RestartInGroup:
    """Restart the worker, and have all members of its group form a new one. One rule serves all.
    ``members``: what the user calls them."""

    counts_itself = True

    def __init__(self, epoch: GroupEpoch, members: str = "ranks") -> None:
        self._epoch = epoch
        self._members = members
        self._told = 0

    def begin_next_life(self) -> str | None:
        if not self._epoch.begin():
            return None
        return f"{self._epoch.generation} of {self._epoch.limit} times"

    def news(self) -> str | None:
        """From where the group goes on, once all of its members have joined."""
        resumed = self._epoch.resumed
        if resumed.number <= self._told:
            return None
        self._told = resumed.number
        lost = "1 update is" if resumed.lost == 1 else f"{resumed.lost:,} updates are"
        go = "go" if self._members.endswith("s") else "goes"
        return f"the {self._members} {go} on from update {resumed.version:,}: {lost} lost"

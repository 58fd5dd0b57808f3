"""Restart rules: the reaction of a run to the death of a worker, one rule per node of the graph."""

from __future__ import annotations

from sampleforge.peers.boards import GroupEpoch
from sampleforge.shared.counters import RestartBudget


class RestartRule:
    """The reaction to a node whose process was killed or hangs; this one ends the run."""

    def begin_next_life(self) -> str | None:
        """Count a restart of the node. Return the count as text for the user ("2 of 10 times"), or
        None if the node is not restarted and the run ends."""
        return None

    def told(self, why: str) -> str:
        """Return ``why`` a run ends whose node is not restarted, with what it tells the user."""
        return why

    def news(self) -> str | None:
        """Return a message about the latest restart; None if there is no new one."""
        return None


END_RUN = RestartRule()


class RestartAlone(RestartRule):
    """Restart this worker and no other one. It is worker ``index`` of ``budget``, which all workers
    of its role share."""

    def __init__(self, budget: RestartBudget, index: int) -> None:
        self._budget = budget
        self._index = index

    def begin_next_life(self) -> str | None:
        if not self._budget.begin(self._index):
            return None
        return f"{self._budget.total} of {self._budget.limit} times"


class RestartInGroup(RestartRule):
    """Restart the worker, and make all members of its group form a new group. The members share one
    rule. ``members``: their name in messages. ``not_replaced``: why none is restarted, and what the
    user can do; empty if they are."""

    def __init__(
        self, epoch: GroupEpoch, members: str = "ranks", *, not_replaced: str = ""
    ) -> None:
        self.epoch = epoch
        self._members = members
        self._not_replaced = not_replaced
        self._told = 0

    def begin_next_life(self) -> str | None:
        if self._not_replaced or not self.epoch.begin():
            return None
        return f"{self.epoch.generation} of {self.epoch.limit} times"

    def told(self, why: str) -> str:
        return f"{why}; {self._not_replaced}" if self._not_replaced else why

    def news(self) -> str | None:
        """Return from which update the group goes on, once all members have joined."""
        resumed = self.epoch.resumed
        if resumed.number <= self._told:
            return None
        self._told = resumed.number
        lost = "1 update is" if resumed.lost == 1 else f"{resumed.lost:,} updates are"
        go = "go" if self._members.endswith("s") else "goes"
        return f"the {self._members} {go} on from update {resumed.version:,}: {lost} lost"

"""The membership of a rank, or of one of several learners, in the group that learns one policy: one
group after the other, because a new one is formed when a member was replaced."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

from sampleforge.peers.boards import GroupEpoch
from sampleforge.peers.group import RankGroup, RankLost
from sampleforge.shared.counters import Counters
from sampleforge.workers.worker import StopFlag

REPLACEMENT_TIMEOUT = 5.0
"""Seconds to wait for the driver to replace a member that has died."""


class Membership:
    """The ``index``-th member of the group.

    ``join(generation)`` returns the group of that generation. ``counters``: of the run, in which
    the members have rows one by one, from ``first_row`` on. ``patience``: seconds to wait for the
    driver to replace another member. ``generation``: of the group that was joined last.
    """

    def __init__(
        self,
        index: int,
        join: Callable[[int], RankGroup],
        epoch: GroupEpoch,
        stop: StopFlag,
        counters: Counters,
        first_row: int,
        patience: float = REPLACEMENT_TIMEOUT,
    ) -> None:
        self.index = index
        self.epoch = epoch
        self._join = join
        self._stop = stop
        self._counters = counters
        self._first_row = first_row
        self._patience = patience
        self._group: RankGroup | None = None

    @property
    def group(self) -> RankGroup:
        assert self._group is not None, "join_newest comes first"
        return self._group

    @property
    def is_outdated(self) -> bool:
        """Whether the driver has replaced another member, so that a new group is formed."""
        return self.epoch.generation != self.generation

    @property
    def is_over(self) -> bool:
        """Whether the run ends, so that the other members have left regularly."""
        return self._stop.is_set()

    def join_newest(self) -> None:
        """Join the newest group, or a newer one if another member is replaced meanwhile. Raises
        RankLost if no group is formed."""
        while True:
            self.generation = self.epoch.generation
            try:
                self._group = self._join(self.generation)
                return
            except RankLost as error:
                if not self.is_renewed(error):  # if all members are new, no other one reports it
                    raise

    def change(self) -> None:
        """Leave the group, and join the newest one. Raises RankLost if it is not formed."""
        self.epoch.mark_batch(self.index, 0)
        self.leave()
        self.generation = self.epoch.generation
        self._group = self._join(self.generation)

    def is_renewed(self, error: RankLost) -> bool:
        """Return whether the driver has replaced the member by which the group was lost, waiting
        for it up to ``patience`` seconds. The driver is told of a silent member, because it sees by
        itself only those that have died."""
        if error.silent is not None and not self.is_outdated:
            self._counters.row(self._first_row + error.silent)["silent_s"][0] = error.seconds
        give_up_at = perf_counter() + self._patience
        while not self.is_outdated:
            if self._stop.is_set() or perf_counter() > give_up_at:
                return False
            sleep(0.02)
        return True

    def leave(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            self._group.close()

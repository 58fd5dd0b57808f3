"""A member of a population in one run, as the driver knows it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from sampleforge.populations.exploit import Member, Value
from sampleforge.populations.rounds import MIN_EPISODES
from sampleforge.run.reports.policy_statistics import PolicyStatistics
from sampleforge.shared.member_board import ChangeInbox, MemberBoard, Segment
from sampleforge.topologies.graph import PolicyGroup


@dataclass
class Pending:
    """A change that was sent to a member. ``events``: what it means, for the lineage, without the
    values that are known when it has been applied. ``hyperparameters``: those after it.
    ``donor``: whose weights it copies (None: no weights are copied)."""

    number: int
    events: list[dict[str, Any]]
    hyperparameters: dict[str, Value]
    segment: Segment | None = None
    donor: str | None = None


@dataclass
class MemberInRun:
    """A member as the driver knows it: its policy ``group``, the ``index`` of that, and its present
    ``hyperparameters``.

    ``number`` is that of the newest change that was sent to it; ``segment`` identifies its newest
    segment.
    ``counting`` is "no" from a copy until all of its environments have begun anew, "soon" until
    what had ended before is taken from the queue, and "yes" while its episodes are its own.
    """

    index: int
    group: PolicyGroup
    statistics: PolicyStatistics
    hyperparameters: dict[str, Value]
    number: int = field(default=0, init=False)
    segment: int = field(default=0, init=False)
    counting: Literal["no", "soon", "yes"] = field(default="yes", init=False)
    pending: Pending | None = field(default=None, init=False)
    copied_from: str | None = field(default=None, init=False)
    copies: int = field(default=0, init=False)
    mutations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        channels = self.group.member
        assert channels is not None and channels.inbox is not None
        self.board: MemberBoard = channels.board
        self.inbox: ChangeInbox = channels.inbox

    @property
    def id(self) -> str:
        """The id of its policy."""
        return self.group.id

    @property
    def env_steps(self) -> int:
        """The member's own env steps."""
        return self.board.sampled

    @property
    def objective(self) -> float | None:
        """Mean return of the last 100 episodes of its own; None if there are fewer than
        `MIN_EPISODES`."""
        if self.counting != "yes" or len(self.statistics.returns) < MIN_EPISODES:
            return None
        return self.statistics.return_mean

    def as_member(self) -> Member:
        """Return the member as the rules see it: not rated while a change is on its way to it."""
        objective = None if self.pending else self.objective
        return Member(self.id, objective, self.hyperparameters, self.env_steps)

    def count_own_episodes(self) -> None:
        """Forget episodes of the weights before the last copy."""
        if self.counting == "yes":
            return
        self.statistics.forget_returns()
        if self.counting == "soon":
            self.counting = "yes"
        elif self.board.has_restarted:
            self.counting = "soon"

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        pending = None if self.pending is None else dataclasses.asdict(self.pending)
        if pending is not None and self.pending is not None and self.pending.segment is not None:
            pending["segment"] = list(self.pending.segment)
        return {
            "env_steps": self.env_steps,
            "number": self.number,
            "segment": self.segment,
            "hyperparameters": dict(self.hyperparameters),
            "copied_from": self.copied_from,
            "copies": self.copies,
            "mutations": self.mutations,
            "pending": pending,
        }

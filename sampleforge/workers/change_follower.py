"""Changes of a learner during its training: other hyperparameters, or the state of another learner,
as a population or a schedule orders them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sampleforge.algos.learning import Learner
from sampleforge.shared.member_board import ChangeInbox, MemberBoard, Segment
from sampleforge.spec import ENV_PREFIX

RNG = "rng/"
"""Beginning of the names of random generators in the tensors of a learner's state."""


@dataclass(frozen=True)
class Change:
    """A change of a learner.

    ``hyperparameters``: those that it has afterwards, all or some; names that begin with "env." are
    reward-shaping numbers of its environments. ``segment``: the segment that begins with the
    change, if the member is replaced by a copy. ``state``: the donor's tensors and
    plain values (None: the learner keeps its own).
    """

    hyperparameters: Mapping[str, Any]
    segment: Segment | None = None
    state: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None


class ChangeSource(Protocol):
    """Where changes come from. They are numbered from 1."""

    def due(self, env_steps: int) -> int:
        """Return the number of the newest change that is due after so many env steps; 0 if there
        is none."""

    def read(self, number: int) -> Change:
        """Return a change that is due."""


class ChangesOfPopulation:
    """The changes that the driver sends to a member of a population; each is due when it comes."""

    def __init__(self, inbox: ChangeInbox) -> None:
        self._inbox = inbox

    def due(self, env_steps: int) -> int:
        return self._inbox.number

    def read(self, number: int) -> Change:
        tensors, plain = self._inbox.read()
        segment = plain["segment"]
        return Change(
            plain["hyperparameters"],
            None if segment is None else Segment(*segment),
            (tensors, plain["state"]) if tensors else None,
        )


@dataclass(frozen=True)
class ScheduledChange:
    """A change that is due after ``env_steps``. ``segment``: see `Change`; the weights stay."""

    env_steps: int
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    segment: Segment | None = None


class ChangesOfSchedule:
    """The changes of a schedule, in the order of their env steps."""

    def __init__(self, changes: Sequence[ScheduledChange]) -> None:
        self._changes = changes

    def due(self, env_steps: int) -> int:
        return sum(change.env_steps <= env_steps for change in self._changes)

    def read(self, number: int) -> Change:
        change = self._changes[number - 1]
        return Change(change.hyperparameters, change.segment)


class ChangeFollower:
    """Applies changes to a learner between two updates.

    The number of the newest change is part of the learner's state (``tag``). So a state is that
    before a change or that after it, wherever the learner is killed: its next life continues from
    one of the two, and applies the change if it has not been applied.

    ``count`` returns the env steps that have led to the learner's weights, by which a schedule
    orders changes (None: the learner counts them itself). ``max_policy_lag``: largest lag of
    experience that is learned from. A change that begins a segment raises the policy version by one
    more, so that all experience of the weights before it is stale. ``index``: number of the
    learner; learner 0 reports to ``board``.
    """

    def __init__(
        self,
        source: ChangeSource,
        board: MemberBoard,
        count: Callable[[], int] | None,
        max_policy_lag: int | None,
        index: int = 0,
    ) -> None:
        self._source = source
        self._board = board
        self._count = count
        self._raised_by = (max_policy_lag or 0) + 1
        self._index = index

    def count(self, learner: Learner) -> int:
        """Return the env steps that have led to the learner's weights by now."""
        return learner.env_steps if self._count is None else self._count()

    def due(self, learner: Learner) -> int:
        """Return the number of the newest change that is due."""
        return self._source.due(learner.env_steps)

    def has_applied(self, learner: Learner, number: int) -> bool:
        """Return whether change ``number`` is part of the learner's state."""
        return number <= int(learner.tag.get("change", 0))

    def apply(self, learner: Learner, number: int) -> None:
        """Apply all changes up to ``number`` that the learner has not applied. The state is
        complete when this returns, but no other process knows of it before `confirm`."""
        for each in range(learner.tag.get("change", 0) + 1, number + 1):
            self._apply(learner, self._source.read(each))
            learner.tag |= {"change": each, "at": learner.env_steps}

    def _apply(self, learner: Learner, change: Change) -> None:
        tag, version = dict(learner.tag), learner.version
        if change.state is not None:
            donor, plain = change.state
            own = {n: t for n, t in learner.state()[0].items() if n.startswith(RNG)}
            copied = {n: t for n, t in donor.items() if not n.startswith(RNG)}
            learner.load({**copied, **own}, {**plain, "version": version})
        # Only what differs: the learning rate that a schedule of its own has reached is kept.
        before, new = learner.hyperparameters(), dict(change.hyperparameters)
        shaping = {n: v for n, v in new.items() if n.startswith(ENV_PREFIX)}
        learner.change({n: v for n, v in new.items() if n not in shaping and v != before.get(n)})
        learner.tag = tag | ({"shaping": tag.get("shaping", {}) | shaping} if shaping else {})
        if change.segment is not None:
            learner.version = version + self._raised_by
            learner.reseed(change.segment.seed)
            learner.tag["segment"] = list(change.segment)

    def confirm(self, learner: Learner) -> None:
        """Report the state of the learner to the driver and the actors, once it is safe in shared
        memory and its weights are published; also after each update."""
        if self._index == 0:
            self._board.set_learned(learner.env_steps)
            self._board.set_applied_at(learner.tag.get("at", 0))
            if "shaping" in learner.tag:
                shaping = learner.tag["shaping"]
                self._board.set_shaping({n.removeprefix(ENV_PREFIX): v for n, v in shaping.items()})
            if "segment" in learner.tag:
                self._board.begin_segment(Segment(*learner.tag["segment"]))
        self._board.set_applied(self._index, learner.tag.get("change", 0))

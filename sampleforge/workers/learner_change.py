"""Changes of a learner during its training: other hyperparameters, the state of another learner or
of a checkpoint, or other weights, as a population, a schedule or the driver orders them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from sampleforge.algorithms.learning import RELEASED, Learner
from sampleforge.shared.member_board import ChangeInbox, MemberBoard, Segment
from sampleforge.spec import ENV_PREFIX

RNG = "rng/"
"""Beginning of the names of random generators in the tensors of a learner's state."""
LOAD = "load"
"""The kind of request by which the driver asks a learner to change: see `ChangeRequest`."""


@dataclass(frozen=True)
class LearnerChange:
    """A change of a learner between two updates.

    ``hyperparameters``: those that it has afterwards, all or some; names that begin with "env." are
    reward-shaping numbers of its environments. ``segment``: the segment that begins with the
    change, if the member of a population is replaced by a copy.

    ``tensors`` and ``plain``: a complete state in the place of the learner's own (both empty: it
    keeps its own); random generators and a version that are not in it stay the learner's own.
    Without ``plain``, ``tensors`` are a policy's weights, ``model/<name>``, and leave the rest of
    the state: the optimiser's moments, the hyperparameters, the random generators.

    ``relative``: it is one of a population, so that a learning rate that the learner has adapted is
    multiplied, see `Learner.change`. ``raised_by``: policy versions that the learner skips, at
    least one more than the largest policy lag that is learned from, so that all experience of the
    weights before is stale; 0 if they stay. ``env_steps``: those that have led to the weights when
    the change of a schedule is due.
    """

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    segment: Segment | None = None
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    relative: bool = False
    raised_by: int = 0
    env_steps: int = 0

    def put_into(self, learner: Learner) -> None:
        """Change ``learner``, between two updates. The policy version never goes back."""
        tag = dict(learner.tag)
        version = max(learner.version + self.raised_by, int(self.plain.get("version", 0)))
        if self.tensors:
            tensors, plain = self._state_for(learner)
            learner.load(tensors, {**plain, "version": version})
        # Only what differs: the learning rate that a schedule of its own has reached is kept.
        before, new = learner.hyperparameters(), dict(self.hyperparameters)
        shaping = {n: v for n, v in new.items() if n.startswith(ENV_PREFIX)}
        new = {n: v for n, v in new.items() if n not in shaping and v != before.get(n)}
        learner.change(new, relative=self.relative)
        learner.version = version
        learner.tag = tag | ({"shaping": tag.get("shaping", {}) | shaping} if shaping else {})
        if self.segment is not None:
            learner.reseed(self.segment.seed)
            learner.tag["segment"] = list(self.segment)

    def _state_for(self, learner: Learner) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state that ``learner`` loads."""
        own, plain = learner.state()
        if self.plain:
            generators = {name: tensor for name, tensor in own.items() if name.startswith(RNG)}
            # Parts of its model are held for as long as its own config says.
            tag = {n: v for n, v in self.plain.get("tag", {}).items() if n != RELEASED}
            return {**generators, **self.tensors}, {**self.plain, "tag": tag}
        weights = {name.removeprefix("model/"): tensor for name, tensor in self.tensors.items()}
        for network in ("model", *learner.copies):
            own |= {f"{network}/{name}": tensor for name, tensor in weights.items()}
        return own, plain


class ChangeSource(ABC):
    """Where numbered changes come from. ``tag``: the entry of a learner's tag with the number of
    the newest change that is part of its state."""

    tag = "change"

    @abstractmethod
    def due(self, env_steps: int) -> int:
        """Return the number of the newest change that is due after so many env steps; 0 if there
        is none."""

    def agreed(self, due: torch.Tensor) -> int:
        """Return the number up to which all learners apply changes now, given what is due at each,
        [learners]."""
        return int(due.min())

    @abstractmethod
    def read(self, applied: int, number: int) -> Iterator[tuple[int, LearnerChange]]:
        """Yield the changes after ``applied`` up to ``number``, each with its number."""


class ChangesOfPopulation(ChangeSource):
    """The changes that the driver sends to a member of a population; each is due when it comes.
    ``max_policy_lag``: largest lag of experience that is learned from."""

    def __init__(self, inbox: ChangeInbox, max_policy_lag: int | None) -> None:
        self._inbox = inbox
        self._raised_by = (max_policy_lag or 0) + 1

    def due(self, env_steps: int) -> int:
        return self._inbox.number

    def read(self, applied: int, number: int) -> Iterator[tuple[int, LearnerChange]]:
        if number <= applied:
            return
        tensors, sent = self._inbox.read()
        segment = None if sent["segment"] is None else Segment(*sent["segment"])
        yield (
            number,
            LearnerChange(
                sent["hyperparameters"],
                segment,
                # Two copies of a donor draw other minibatches, and have versions of their own.
                {name: t for name, t in tensors.items() if not name.startswith(RNG)},
                {name: value for name, value in sent["state"].items() if name != "version"},
                relative=True,
                raised_by=0 if segment is None else self._raised_by,
            ),
        )


class ChangesOfSchedule(ChangeSource):
    """The changes of a schedule, in the order of their env steps. ``max_policy_lag``: see
    `ChangesOfPopulation`."""

    def __init__(self, changes: Sequence[LearnerChange], max_policy_lag: int | None) -> None:
        raised_by = (max_policy_lag or 0) + 1
        self._changes = [
            change if change.segment is None else replace(change, raised_by=raised_by)
            for change in changes
        ]

    def due(self, env_steps: int) -> int:
        return sum(change.env_steps <= env_steps for change in self._changes)

    def read(self, applied: int, number: int) -> Iterator[tuple[int, LearnerChange]]:
        yield from enumerate(self._changes[applied:number], applied + 1)


@dataclass(frozen=True)
class ChangeRequest:
    """The payload of a request to load a state, or to set hyperparameters; the answer is whether
    the learner has done so.

    ``number``: of the request, larger than those of all earlier ones. ``file``: of
    `write_state_file` (None: the state stays). ``hyperparameters``, ``raised_by``: see
    `LearnerChange`.
    """

    number: int
    file: Path | None = None
    raised_by: int = 0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> LearnerChange:
        """Return the change that is asked for."""
        if self.file is None:
            return LearnerChange(self.hyperparameters)
        with safetensors.safe_open(self.file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            plain = json.loads(opened.metadata()["plain"])
        return LearnerChange(tensors=tensors, plain=plain, raised_by=self.raised_by)


def write_state_file(file: Path, tensors: dict[str, torch.Tensor], plain: dict[str, Any]) -> None:
    """Write what `ChangeRequest.read` reads. Raises OSError if the file cannot be written."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    file.write_bytes(safetensors.torch.save(whole, {"plain": json.dumps(plain)}))


class ChangesOfRequests(ChangeSource):
    """The changes that the driver asks a learner for. All learners apply one after the update by
    whose end each of them was asked for it, and for no later one. A learner that has replaced
    another one is asked anew for all that not every learner has applied."""

    tag = LOAD

    def __init__(self) -> None:
        self._newest = 0
        self._asked: dict[int, LearnerChange] = {}

    def ask(self, request: ChangeRequest) -> None:
        """Take a request, whose file is read here."""
        if request.number not in self._asked:
            self._asked[request.number] = request.read()
            self._newest = max(self._newest, request.number)

    def due(self, env_steps: int) -> int:
        return self._newest

    def agreed(self, due: torch.Tensor) -> int:
        return int(due[0]) if bool((due == due[0]).all()) else 0

    def read(self, applied: int, number: int) -> Iterator[tuple[int, LearnerChange]]:
        for each in sorted(self._asked):
            if each <= number:
                change = self._asked.pop(each)
                if each > applied:
                    yield each, change


class ChangeFollower:
    """Applies changes to a learner between two updates: those of ``source`` (None: there are no
    such), and those that the driver asks it for.

    The numbers of the newest changes are part of the learner's state (``tag``). So a state is that
    before a change or that after it, wherever the learner is killed: its next life continues from
    one of the two, and applies the change if it has not been applied.

    ``board``: of the member of a population, or of the policy of a schedule (None: it is neither).
    ``index``: number of the learner; learner 0 reports to ``board``. ``counts_sampled``: the env
    steps that have led to the learner's weights, by which a schedule orders changes, are all those
    that the member has sampled by now (default: the learner counts them itself).
    """

    def __init__(
        self,
        source: ChangeSource | None = None,
        board: MemberBoard | None = None,
        index: int = 0,
        *,
        counts_sampled: bool = False,
    ) -> None:
        self._requests = ChangesOfRequests()
        self._sources = (self._requests,) if source is None else (source, self._requests)
        self._board = board
        self._index = index
        self._counts_sampled = counts_sampled

    @property
    def is_member(self) -> bool:
        """Whether the learner is that of a member of a population, or follows a schedule."""
        return self._board is not None

    def count(self, learner: Learner) -> int:
        """Return the env steps that have led to the learner's weights by now."""
        if self._counts_sampled and self._board is not None:
            return self._board.sampled
        return learner.env_steps

    def ask(self, request: ChangeRequest) -> None:
        """Take a request of the driver."""
        self._requests.ask(request)

    def has_applied(self, learner: Learner, request: ChangeRequest) -> bool:
        """Return whether a change that was asked for is part of the learner's state, also since an
        earlier life."""
        return int(learner.tag.get(LOAD, 0)) >= request.number

    def due(self, learner: Learner) -> list[int]:
        """Return the number of the newest change of each source that is due."""
        return [source.due(learner.env_steps) for source in self._sources]

    def agreed(self, dues: Sequence[torch.Tensor]) -> list[int]:
        """Return the numbers up to which all learners apply changes now. ``dues``: what `due`
        returned at each, [learners] for each source."""
        return [source.agreed(due) for source, due in zip(self._sources, dues, strict=True)]

    def apply(self, learner: Learner, numbers: Sequence[int]) -> bool:
        """Apply all changes up to the ``numbers`` that the learner has not applied. Return whether
        there were any. The state is complete when this returns, but no other process knows of it
        before `confirm`."""
        found = False
        for source, number in zip(self._sources, numbers, strict=True):
            for each, change in source.read(int(learner.tag.get(source.tag, 0)), number):
                change.put_into(learner)
                learner.tag[source.tag] = each
                if source is not self._requests:
                    learner.tag["at"] = learner.env_steps
                found = True
        return found

    def confirm(self, learner: Learner) -> None:
        """Report the state of the learner to the driver and the actors, once it is safe in shared
        memory and its weights are published; also after each update."""
        if self._board is None:
            return
        if self._index == 0:
            self._board.set_learned(learner.env_steps)
            self._board.set_applied_at(learner.tag.get("at", 0))
            if "shaping" in learner.tag:
                shaping = learner.tag["shaping"]
                self._board.set_shaping({n.removeprefix(ENV_PREFIX): v for n, v in shaping.items()})
            if "segment" in learner.tag:
                self._board.begin_segment(Segment(*learner.tag["segment"]))
        self._board.set_applied(self._index, learner.tag.get("change", 0))

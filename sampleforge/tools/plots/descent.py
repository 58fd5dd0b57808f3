"""The history of a population, from the events of its lineage.jsonl: what its members scored,
copied and mutated, and which of them descends from which."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Copy(NamedTuple):
    """A member has taken over weights and hyperparameters of another one.

    ``env_steps`` and ``donor_env_steps``: each in the member's own count; ``snapshot``: what was
    copied, as the file names it; ``donor_objective``: NaN if it is not known.
    """

    receiver: str
    env_steps: int
    donor: str
    donor_env_steps: int
    snapshot: str
    donor_objective: float


class MemberScore(NamedTuple):
    """The objective of a member at some env steps of its own; NaN if it is not known yet."""

    env_steps: int
    objective: float


class MemberSetting(NamedTuple):
    """The hyperparameters of a member from some env steps of its own on. ``mutated``: the names of
    those that were changed then."""

    env_steps: int
    values: Mapping[str, float]
    mutated: tuple[str, ...] = ()


@dataclass(eq=False)
class Stretch:
    """The part of a member's training between two copies into it: one line of descent.

    ``begin`` and ``end``: in the member's own env steps. ``origin``: the copy with which it began,
    and ``parent``: the stretch that was copied (both None for the first stretch of a member).
    """

    member: str
    begin: int
    origin: Copy | None = None
    parent: Stretch | None = None
    end: int = 0
    scores: list[MemberScore] = field(default_factory=list)
    settings: list[MemberSetting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.begin

    @property
    def objective(self) -> float:
        """The last objective that is known of this stretch; NaN if none is."""
        known = [score.objective for score in self.scores if not math.isnan(score.objective)]
        return known[-1] if known else math.nan

    def set(self, env_steps: int, values: Mapping[str, float], mutated: Sequence[str] = ()) -> None:
        """Record the hyperparameters from ``env_steps`` on, if they differ from those before."""
        if self.settings and self.settings[-1].env_steps == env_steps:
            mutated = [*self.settings.pop().mutated, *mutated]
        elif self.settings and self.settings[-1].values == values:
            return
        self.settings.append(MemberSetting(env_steps, values, tuple(mutated)))


class History:
    """The history of a population: the stretches of each of its ``members``, in their order."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        """``events``: the lines of the file, in order. Raises ValueError for a donor that has not
        started."""
        self.stretches: dict[str, list[Stretch]] = {}
        for event in without_repeated_rounds(events):
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, member, env_steps = event["event"], str(event["member"]), int(event["env_steps"])
        if kind == "exploit":
            origin = Copy(
                member,
                env_steps,
                str(event["donor"]),
                int(event["donor_env_steps"]),
                str(event.get("snapshot", "")),
                _number(event.get("donor_objective")),
            )
            parent = self._stretch_at(origin.donor, origin.donor_env_steps)
            self.stretches.setdefault(member, []).append(Stretch(member, env_steps, origin, parent))
        elif member not in self.stretches:
            self.stretches[member] = [Stretch(member, env_steps)]
        stretch = self.stretches[member][-1]
        stretch.end = max(stretch.end, env_steps)
        if kind == "score":
            stretch.scores.append(MemberScore(env_steps, _number(event["objective"])))
        given = event["hyperparameters"].items()
        values = {name: float(value) for name, value in given if value is not None}
        stretch.set(env_steps, values, tuple(event.get("changed", ())))

    def _stretch_at(self, member: str, env_steps: int) -> Stretch:
        """Return the stretch to which a snapshot of ``member`` at ``env_steps`` belongs: where it
        was taken as another stretch began, that is the one before."""
        if member not in self.stretches:
            raise ValueError(f"member {member} was copied, but has not started")
        earlier = [each for each in self.stretches[member] if each.begin < env_steps]
        return earlier[-1] if earlier else self.stretches[member][0]

    @property
    def members(self) -> list[str]:
        """The ids of all members; numbers are ordered by value."""
        return sorted(self.stretches, key=_natural)

    @property
    def all_stretches(self) -> list[Stretch]:
        """The stretches of all members, in the members' order and then by time."""
        return [stretch for member in self.members for stretch in self.stretches[member]]

    @property
    def copies(self) -> list[Copy]:
        """All copies, ordered by receiver and then by time."""
        each = (stretch.origin for stretch in self.all_stretches)
        return [origin for origin in each if origin is not None]

    @property
    def best(self) -> str:
        """The member with the highest objective at the end; of several, the one that was copied
        into longest ago. A member that has not been scored since a copy into it counts only if no
        other has been, by its objective before."""
        last = {member: self.stretches[member][-1] for member in self.members}
        at_the_end = {member: stretch.objective for member, stretch in last.items()}
        if all(map(math.isnan, at_the_end.values())):
            at_the_end = {
                member: max((each.objective for each in own), key=_with_nan_last)
                for member, own in self.stretches.items()
            }

        def merit(member: str) -> tuple[float, int]:
            return _with_nan_last(at_the_end[member]), last[member].end - last[member].begin

        return max(self.members, key=merit)

    def ancestry(self, member: str) -> list[tuple[Stretch, int]]:
        """Return the stretches that the present weights of ``member`` descend from, oldest first,
        each with the env steps of its member up to which they do: it ends where it was copied, the
        last one at the end of the member's training."""
        stretch: Stretch | None = self.stretches[member][-1]
        assert stretch is not None
        line, end = [], stretch.end
        while stretch is not None:
            line.append((stretch, end))
            end = stretch.origin.donor_env_steps if stretch.origin is not None else 0
            stretch = stretch.parent
        return line[::-1]

    def survival(self) -> dict[Stretch, int]:
        """Return, for each stretch that some member's present weights descend from, the env steps
        (of its own member) up to which they do."""
        until: dict[Stretch, int] = {}
        for member in self.members:
            for stretch, end in self.ancestry(member):
                until[stretch] = max(until.get(stretch, 0), end)
        return until


def without_repeated_rounds(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events without those that a resumed population did again: where a member is scored
    in a round for the second time, its events of that round and of later ones before it are left
    out. So it is with the events of a member that starts again."""
    kept: dict[str, list[int]] = {}
    events = list(events)
    for index, event in enumerate(events):
        own = kept.setdefault(str(event["member"]), [])
        if event["event"] in ("score", "start"):
            began = event["round"] + (event["event"] == "start")
            while own and events[own[-1]]["round"] >= began and events[own[-1]]["event"] != "start":
                own.pop()
        own.append(index)
    return [events[index] for index in sorted(i for own in kept.values() for i in own)]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _with_nan_last(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key by which names are sorted, with numbers in them by value."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)

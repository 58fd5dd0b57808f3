"""Schedules: the hyperparameters over env steps that a population has found, exported from its
lineage for one member and its ancestors, and replayed by one run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from sampleforge.algorithms.annealing import annealings
from sampleforge.config import ConfigError, typed, with_underscores
from sampleforge.populations.rules import check_unchanged
from sampleforge.run.callback import Callback
from sampleforge.run.hyperparameters import with_values
from sampleforge.run.opening import StoredPolicy
from sampleforge.run.session import Session
from sampleforge.run.unused import Resolved, of_changing, stages, unread
from sampleforge.runtime.yaml_text import parsed_yaml
from sampleforge.shared.member_board import Segment
from sampleforge.spec import ENV_PREFIX
from sampleforge.topologies.registry import pairing
from sampleforge.workers.learner_change import LearnerChange

SCHEDULE_FILE = "schedule.json"
FORMAT = 1
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Changes of hyperparameters over env steps.

    ``env_steps``: those at which the member's training ended (None: it has no end). ``seed``: that
    the training began with. The first of ``changes`` is at 0 env steps.
    """

    algo: str | None
    seed: int | None
    env_steps: int | None
    changes: tuple[LearnerChange, ...]


def schedule_of(events: Sequence[Event], member: str, algo: str, env_steps: int) -> dict[str, Any]:
    """Return the schedule of a member, with those of the ancestors whose weights it has, as values
    for JSON. ``events``: the lineage; ``env_steps``: those that have led to the member's weights.
    Raises ValueError if the lineage has no beginning of the member or of an ancestor."""
    after_all = max((event["round"] for event in events), default=0) + 1
    return _schedule_values(_chain(events, member, after_all), member, algo, env_steps)


def schedule_of_round(
    events: Sequence[Event], member: str, round_number: int, algo: str
) -> dict[str, Any]:
    """Return the schedule of the weights that a member of a population of runs has published in a
    round; see `schedule_of`. Raises ValueError also if the lineage lacks that round."""
    scores = [
        event
        for event in events
        if (event["event"], event["member"], event["round"]) == ("score", member, round_number)
    ]
    if not scores:
        raise ValueError(f"the lineage has no score of member {member} in round {round_number}")
    # What the member has changed after publishing is logged with the same round.
    chain = _chain(events, member, before=round_number)
    env_steps = _positions([*chain, scores[-1]])[-1]
    return _schedule_values(chain, member, algo, env_steps)


def _schedule_values(
    chain: Sequence[Event], member: str, algo: str, env_steps: int
) -> dict[str, Any]:
    """Return the values for JSON of the schedule that consists of the events ``chain``."""
    entries: list[dict[str, Any]] = []
    segments = 0
    for event, at in zip(chain, _positions(chain), strict=True):
        entry = {
            "env_steps": at,
            "member": event["member"],
            "hyperparameters": dict(event["hyperparameters"]),
        }
        if event["event"] == "exploit":
            segments += 1  # numbered anew, because those of ancestors are numbers of other members
            entry["segment"] = [segments, event["segment"][1]] if "segment" in event else None
        elif entries and entries[-1]["env_steps"] == entry["env_steps"]:
            entries[-1]["hyperparameters"] = entry["hyperparameters"]  # copied and perturbed
            continue
        entries.append(entry)
    return {
        "format": FORMAT,
        "algo": algo,
        "member": member,
        "seed": chain[0].get("seed"),
        "env_steps": env_steps,
        "changes": entries,
    }


def _positions(chain: Sequence[Event]) -> list[int]:
    """Return for each event of a chain the env steps that had led to the weights by then: "at" of
    the event, if the learner counts them. Otherwise the count of a member runs as many env steps
    ahead of its weights as its newest copy has made it."""
    positions, ahead = [], 0
    for event in chain:
        position = 0 if event["event"] == "start" else event.get("at")
        if event["event"] == "exploit":
            position = event["donor_env_steps"] - ahead if position is None else position
            ahead = event["env_steps"] - position
        positions.append(event["env_steps"] - ahead if position is None else position)
    return positions


def _chain(events: Sequence[Event], member: str, before: int) -> list[Event]:
    """Return the events of rounds ``before`` that have led to the weights and hyperparameters of a
    member: its own since its last copy, the copy, those of the donor before it, and so on, the
    oldest first."""
    newest_first: list[Event] = []
    while True:
        own = [e for e in events if e["member"] == member and e["round"] < before]
        begins = [i for i, e in enumerate(own) if e["event"] in ("start", "exploit")]
        if not begins:
            raise ValueError(f"the lineage has no beginning of member {member}")
        first = own[begins[-1]]
        changes = [e for e in own[begins[-1] + 1 :] if e["event"] == "explore"]
        newest_first += [*reversed(changes), first]
        if first["event"] == "start":
            return newest_first[::-1]
        member, before = first["donor"], first.get("donor_round", first["round"])


def read_schedule(path: Path) -> Schedule:
    """Return the schedule in a file of JSON or YAML. Raises ConfigError, which names the file and
    the reason, if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
        content = _parsed(text)
        return _schedule(content)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        yaml.YAMLError,
        RecursionError,
    ) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{typed('schedule', path)}: {reason}; give a file such as the {SCHEDULE_FILE} in the "
            "run folder of a population"
        ) from error


def _parsed(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text, object_pairs_hook=_once)
    return parsed_yaml(text)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping in JSON. Raises ValueError for a key that it has twice: `parsed_yaml` then
    refuses it with the lines."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _schedule(content: Any) -> Schedule:
    if not isinstance(content, dict):
        raise ValueError("it holds no mapping")
    if content.get("format", FORMAT) != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
    changes = tuple(_change(entry) for entry in content["changes"])
    steps = [change.env_steps for change in changes]
    if not steps or steps[0] != 0 or steps != sorted(steps):
        raise ValueError("the env_steps of its changes must begin at 0 and not decrease")
    seed, end = content.get("seed"), content.get("env_steps")
    return Schedule(
        content.get("algo"),
        None if seed is None else int(seed),
        None if end is None else int(end),
        changes,
    )


def _change(entry: Any) -> LearnerChange:
    env_steps, given = int(entry["env_steps"]), entry["hyperparameters"]
    if not isinstance(given, dict):
        raise ValueError(
            f"the hyperparameters at {env_steps:,} env steps are {given!r}, no mapping"
        )
    segment = entry.get("segment")
    names = with_underscores(given, f"the hyperparameters at {env_steps:,} env steps")
    return LearnerChange(
        {name: _value(env_steps, name, v) for name, v in names.items()},
        None if segment is None else Segment(int(segment[0]), int(segment[1])),
        relative=True,
        env_steps=env_steps,
    )


def _value(env_steps: int, name: str, value: Any) -> Any:
    """Return the value of a hyperparameter, a number as a float: YAML reads 1e-4 as a text."""
    if value is None or isinstance(value, bool):
        return value
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{name} is {value!r} at {env_steps:,} env steps, and must be a number"
        ) from error


class FollowSchedule(Callback):
    """Has the policy of a session follow the schedule in ``config.schedule``, and ends the session
    with it. The learners apply the changes by themselves; see `ChangesOfSchedule`."""

    def on_wire(self, session: Session) -> None:
        config = session.resolved
        path = Path(config.schedule)  # type: ignore[union-attr,arg-type]
        schedule = read_schedule(path)
        given = typed("schedule", path)
        if schedule.algo not in (None, config.algo):
            raise ConfigError(
                f"{given}: it is a schedule for {schedule.algo}, not for {config.algo}"
            )
        if session.spec.num_seats > 1:
            raise ConfigError(
                f"{given}: {config.env} has {session.spec.num_seats} agents, and schedules are "
                "replayed in single-agent environments only; leave it out, and give the "
                "hyperparameters that the schedule ends with as flags"
            )
        self._end = schedule.env_steps
        first, *changes = schedule.changes
        (policy,) = session.opened.policies
        offered = session.spec.shaping_hyperparameters
        known = {*pairing(config).algorithm.hyperparameters(config), *offered}
        named = {name for change in schedule.changes for name in change.hyperparameters}
        if unknown := sorted(named - known):
            raise ConfigError(
                f"{given}: {', '.join(unknown)} cannot change during the training; these can: "
                f"{', '.join(sorted(known))}"
            )
        for name, annealing in annealings(config).items():
            if name in named and annealing.replaces_value:
                raise ConfigError(
                    f"{given}: it changes {name}, which follows {annealing.flag}; leave out one of "
                    "the two"
                )
        check_unchanged(session.opened.changed, named, f"it follows {given}")
        _check_values(session, given, schedule.changes)
        self._marks = [_mark(change) for change in schedule.changes]
        _check_made(policy, given, self._marks)
        session.hyperparameters = {policy.id: {**offered, **first.hyperparameters}}
        session.schedule = tuple(changes)
        for text in _without_effect(session, schedule):
            session.message(f"{given}: {text}", "warning")
        if schedule.seed is not None and schedule.seed != config.seed:
            session.message(
                f"{given} was found with the seed {schedule.seed}; with --seed {config.seed} the "
                "hyperparameters are the same, and the training is not"
            )

    def on_poll(self, session: Session) -> None:
        (group,) = session.graph.groups
        assert group.member is not None
        if session.config.benchmark or self._end is None:
            return  # its length is --benchmark-seconds
        if group.member.board.learned >= self._end:
            session.graph.progress.end()

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        """Return what tells each change, for `_check_made`: the learner's state has only the number
        of those that it has made."""
        return {"schedule": self._marks}


def _mark(change: LearnerChange) -> list[Any]:
    """Return what tells a change from others, as values for JSON: its env steps, and a digest of
    what it does."""
    text = json.dumps([change.hyperparameters, change.segment], sort_keys=True)
    return [change.env_steps, hashlib.sha256(text.encode()).hexdigest()[:16]]


def _check_made(policy: StoredPolicy, given: str, marks: Sequence[list[Any]]) -> None:
    """Raise ConfigError if the changes that a resumed policy has made are not the first ones of the
    schedule, with these ``marks``: it would make one again, or leave one out. Checkpoints of
    earlier versions do not say which ones were made."""
    tag = policy.earlier.get("learner", {}).get("tag", {})
    made = policy.earlier.get("schedule", [])[: 1 + tag.get("change", 0)]  # the one at 0 included
    for before, now in zip_longest(made, marks[: len(made)]):
        if before == now:
            continue
        found = "the file no longer has it"
        if now is not None:
            place = "other values" if now[0] == before[0] else f"one at {now[0]:,} env steps"
            found = f"the file has {place} in its place"
        raise ConfigError(
            f"{given}: the run has made the change at {before[0]:,} env steps, and {found}; undo "
            "that (changes that are not made yet may be edited, and more be added after them), or "
            "start a new run with another --run-dir"
        )


def _check_values(session: Session, given: str, changes: Sequence[LearnerChange]) -> None:
    """Raise ConfigError if the learner, or the environment whose rewards are shaped, cannot have a
    value of the ``changes`` of the schedule that was ``given``: it would end the run once the
    change is due."""
    config = session.resolved
    for change in changes:
        own = dict[str, Any]()
        try:
            for name, value in change.hyperparameters.items():
                if not name.startswith(ENV_PREFIX):
                    own[name] = value
                elif not (type(value) is float and math.isfinite(value)):
                    raise ConfigError(f"{name} is {value}, and must be a finite number")
            config = with_values(session, config, own)
        except ConfigError as error:
            raise ConfigError(
                f"{given}: its change at {change.env_steps:,} env steps: {error}; correct the file"
            ) from error


def _without_effect(session: Session, schedule: Schedule) -> Iterator[str]:
    """Yield a sentence for each flag whose value the schedule replaces at the beginning, and for
    each hyperparameter that it changes and that nothing reads in the session's run. The schedule of
    a population names all, and only those that differ from the run's own count."""
    asked, usual = session.opened.asked, type(session.opened.asked)()
    for name, value in schedule.changes[0].hyperparameters.items():
        own = getattr(asked, name, None)
        if own not in (getattr(usual, name, None), value):
            yield f"{typed(name, own)} has no effect: the file begins with {value}"
    config, values = session.run_plan.config, [each.hyperparameters for each in schedule.changes]
    in_turn = stages(Resolved.of(session.run_plan), values)
    for name in sorted({name for each in values for name in each}):
        own = getattr(config, name, None)
        reason = unread(name, in_turn)
        if reason is not None and any(each.get(name, own) != own for each in values):
            yield f"{name} {of_changing(reason)}"

"""Hyperparameters that callbacks set while a session trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sampleforge.algorithms.annealing import annealings
from sampleforge.config import ConfigError, typed
from sampleforge.names import nearest
from sampleforge.run.unused import FOLLOWED, Resolved, stages, unread
from sampleforge.topologies.graph import PolicyGroup
from sampleforge.workers.learner_change import LOAD, ChangeRequest

if TYPE_CHECKING:
    from sampleforge.run.session import Session


class SetHyperparameters:
    """What callbacks have set and not all learners have applied, in its order, by the policy's id.
    ``reaches_all``: whether the session can ask every learner."""

    def __init__(self, *, reaches_all: bool) -> None:
        self._reaches_all = reaches_all
        self._waiting: dict[str, list[ChangeRequest]] = {}
        self._values: dict[str, dict[str, Any]] = {}

    def set(self, session: Session, name: str, value: Any, policy: str | None) -> None:
        """Have the learners of ``policy`` (None: of all policies) change; see
        `Session.set_hyperparameter`. Before the workers are started, this waits for them."""
        given = f"set_hyperparameter({name!r}, {value!r})"
        value = self._checked(session, given, name, value)
        known = session.roles.trained
        if policy is not None and policy not in known:
            raise ConfigError(f"{given}: no policy {policy!r} is trained, but {', '.join(known)}")
        policies = known if policy is None else (policy,)
        self._check_effect(session, given, name, policies)
        number = session.next_request()
        for each in policies:
            request = ChangeRequest(number, hyperparameters={name: value})
            self._waiting.setdefault(each, []).append(request)
            self._values.setdefault(each, {})[name] = value
        of = "" if policy is None else f" of {policy}"
        session.note(f"{typed(name, value)}{of} from here on: a callback has set it")
        if session.has_workers:
            self.ask(session)

    def ask(self, session: Session) -> None:
        """Ask the learners, which work, for what waits. Several learners of a policy apply it after
        the next update; one that has replaced another is asked again."""
        for group in session.graph.groups if self._waiting else ():
            waiting = self._waiting.pop(group.id, [])
            left = [request for request in waiting if not _all_applied(session, group, request)]
            if left:
                self._waiting[group.id] = left

    def _checked(self, session: Session, given: str, name: str, value: Any) -> Any:
        """Return a value in the type of its setting. Raises ConfigError if it cannot take
        effect."""
        config, changeable = session.resolved, session.run_plan.pairing.algorithm.changeable
        if name not in changeable:
            near = nearest(name, changeable, 1)
            hint = f". Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{given}: it cannot change during the training; these can: "
                f"{', '.join(sorted(changeable))}{hint}"
            )
        value = checked_value(session, given, name, value)
        obstacles = {
            "the population changes hyperparameters (--pbt)": getattr(config, "pbt", False),
            "hyperparameters follow --schedule": session.schedule is not None,
            "nothing is learned (--sampler-only)": config.sampler_only,
            "torchrun has started the other ranks; use --num-ranks": not self._reaches_all,
        }
        for reason, holds in obstacles.items():
            if holds:
                raise ConfigError(f"{given} has no effect: {reason}; leave out one of the two")
        return value

    def _check_effect(
        self, session: Session, given: str, name: str, policies: Sequence[str]
    ) -> None:
        """Raise ConfigError if nothing reads a hyperparameter, whether the others are those of the
        config or those that the learners of the ``policies`` have been given since."""
        stored = {each.id: each.earlier.get("learner", {}) for each in session.opened.policies}
        values = [
            {**stored[each].get("hyperparameters", {}), **self._values.get(each, {})}
            for each in policies
        ]
        check_effect(session, given, name, values)


def checked_value(session: Session, given: str, name: str, value: Any) -> Any:
    """Return a new value of a hyperparameter of a session, in the type of its setting. Raises
    ConfigError, which begins with what was ``given``, if no learner can have it, or if the
    hyperparameter follows a schedule of --anneal."""
    config = session.resolved
    try:
        value = getattr(with_values(session, config, {name: value}), name)
    except ConfigError as error:
        raise ConfigError(f"{given}: {error}") from error
    schedule = annealings(config).get(name)
    if schedule is not None and schedule.replaces_value:
        raise ConfigError(
            f"{given} has no effect: it follows {schedule.flag}; leave out one of the two"
        )
    return value


def check_effect(
    session: Session, given: str, name: str, values: Iterable[Mapping[str, Any]]
) -> None:
    """Raise ConfigError, which begins with what was ``given``, if nothing in a session reads a
    hyperparameter, whether the others are those of the config or of one of the ``values``."""
    reason = unread(name, stages(Resolved.of(session.run_plan), ({}, *values)))
    if reason not in (None, FOLLOWED):
        raise ConfigError(
            f"{given} has no effect: {reason}. Leave it out, or give the run other settings"
        )


def with_values(session: Session, config: Any, values: Mapping[str, Any]) -> Any:
    """Return ``config``, that of a session with defaults resolved, with the ``values`` of some
    hyperparameters. Raises ConfigError for a value that no learner can have: one of another type,
    out of range, or None where that is not an option that is off, but stands for a default."""
    new = dataclasses.replace(config, **values)
    for name in [name for name, value in values.items() if value is None]:
        usual = getattr(session.run_plan.pairing.resolved(new, session.spec), name)
        if usual is not None:
            raise ConfigError(f"{typed(name, None)}: must be a number; its default is {usual:g}")
    return new


def _all_applied(session: Session, group: PolicyGroup, request: ChangeRequest) -> bool:
    """Ask all learners of a policy; return whether all have applied the change."""
    timeout = session.run_plan.answer_timeout
    answers = [session.runner.ask(each, LOAD, request, timeout) for each in group.learners]
    return all(answers)

"""What takes part in a session without being part of it: the base class of all callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.env.user_code import import_user_module
from sampleforge.names import nearest
from sampleforge.run.reports.metrics import evaluations
from sampleforge.workers.callback import (
    WORKER_HOOKS,
    WorkerCallback,
    hook_name,
    name_cause,
    overrides,
)

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.shared.records import EpisodeRecord

T = TypeVar("T")

Level = Literal["debug", "info", "warning", "alert", "error", "result"]
"""Of a message; an alert is a warning that a quiet screen shows, too."""


class Message(NamedTuple):
    """What the user is to know. ``source``: the worker that says it, or "session"."""

    text: str
    level: Level = "info"
    source: str = "session"


class Callback(WorkerCallback):
    """Override what you need; every method does nothing here. docs/callbacks.md has a table.

    The hooks of this class get the session. They run in the session's own process, in the thread
    that iterates over its reports, in the order in which the session was given the callbacks. Those
    of `WorkerCallback` run in workers, on the worker's own copy of the object. What a hook raises
    ends the session, and the error names callback and hook.
    """

    def on_wire(self, session: Session) -> None:
        """The run folder is open and ``session.resolved`` is the config with all defaults; the
        workers are about to be made. May set ``session.hyperparameters``,
        ``session.env_steps_of`` and ``session.schedule``, and the first task."""

    def on_start(self, session: Session) -> None:
        """The workers have been started."""

    def on_poll(self, session: Session) -> None:
        """Several times a second, while the workers work."""

    def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
        """The record of a finished episode has come from its actor: actor, split, row, return and
        length. (`on_episode_end` runs in the actor, beside the environment.) Episodes whose record
        comes once the workers have ended are counted without a call."""

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        """A report is being made: add scalars to it, or change them; ``env_steps`` and ``wall_s``
        must stay."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        """A report is due: its scalars, as metrics.jsonl has them."""

    def on_evaluation(self, session: Session, evaluation: Mapping[str, float]) -> None:
        """The evaluator has finished: the ``eval_*`` scalars of its result."""

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        """Return values that each policy's checkpoint is to hold beside the learner's state, by
        name: numbers, texts, and lists (of a tuple, too) and dicts of them. A resumed session has
        them in ``session.saved_state(self)``."""
        return {}

    def on_checkpoint(self, session: Session, env_steps: int) -> None:
        """A checkpoint of so many env steps has been written."""

    def on_restart(self, session: Session, text: str) -> None:
        """A worker has died or hung, and was started anew; ``text`` says which and why."""

    def on_message(self, session: Session, message: Message) -> None:
        """There is something to tell the user: a restart of a worker (an alert), a result ..."""

    def on_stop(self, session: Session) -> None:
        """The training has ended without an error; the workers still answer."""

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        """The summary is being made: add values to it, which JSON can hold."""

    def on_end(self, session: Session, summary: Mapping[str, Any]) -> None:
        """Everything has ended, with an error or without: the fields of summary.json."""


class UntilWired(Generic[T]):
    """An attribute of a session that is read when the workers are made. Setting it afterwards would
    have no effect, and raises RuntimeError. ``usual``: its value where it is not set."""

    def __init__(self, usual: T) -> None:
        self._usual = usual

    def __set_name__(self, owner: type[Session], name: str) -> None:
        self._name = name

    def __get__(self, session: Session, owner: type[Session]) -> T:
        value: Any = vars(session).get(f"_{self._name}", self._usual)
        if isinstance(value, dict):
            value = MappingProxyType(value)  # a change of one of its items would have no effect
        found: T = value
        return found

    def __set__(self, session: Session, value: T) -> None:
        if hasattr(session, "graph"):
            raise RuntimeError(
                f"session.{self._name} has no effect once the session is open: set it in "
                "Callback.on_wire, or before"
            )
        vars(session)[f"_{self._name}"] = value


class Callbacks(list[Callback]):
    """The callbacks of a session, in the order in which they are called. An exception of a hook of
    the user's gets a note that names the callback and the hook. (SampleForge's own callbacks raise
    errors that explain themselves.)"""

    def __init__(self, session: Session, callbacks: Sequence[Callback]) -> None:
        super().__init__(callbacks)
        self._session = session

    def tell(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback that has it."""
        for callback in self.having(hook):
            self._call(callback, hook, *args)

    def having(self, hook: str) -> list[Callback]:
        """Return the callbacks that have a hook, of their class or set on the object."""
        base = getattr(Callback, hook)
        found = ((callback, getattr(callback, hook)) for callback in self)
        return [c for c, own in found if getattr(own, "__func__", own) is not base]

    def report(self, report: dict[str, float]) -> None:
        """Have all callbacks extend a report, and then tell them of it and of the evaluations that
        it has. Raises TypeError for a value that is no number, and for a report without what every
        one has."""
        for callback in self:
            before = dict(report)
            self._call(callback, "extend_report", report)
            with _naming(callback, "extend_report"):
                for name in KEPT:
                    if name not in report:
                        raise TypeError(f"the report has no {name!r} any more, which must stay")
                    if report[name] != before[name]:
                        raise TypeError(
                            f"report[{name!r}] must stay {before[name]!r}, but is "
                            f"{report[name]!r:.80}"
                        )
                for name, value in report.items():
                    if name not in before or value is not before[name]:
                        _check_name(name, "a report")
                        report[name] = _number(value, f"report[{name!r}]")
        finished = list(evaluations(report).values())
        for callback in self:
            self._call(callback, "on_report", report)
            for evaluation in finished:
                self._call(callback, "on_evaluation", evaluation)

    def states(self) -> dict[str, Any]:
        """Return what the callbacks keep in a checkpoint. Raises TypeError for values that it
        cannot hold."""
        state: dict[str, Any] = {}
        of_users = {}
        names = {id(callback): name for name, callback in self._saving().items()}
        for callback in self:
            found = self._call(callback, "checkpoint_state")
            if id(callback) not in names:
                state |= found
                continue
            with _naming(callback, "checkpoint_state"):
                if not isinstance(found, Mapping):
                    raise TypeError(f"it returned {found!r:.80}, but must return a dict")
                if found:
                    of_users[names[id(callback)]] = plain(found, "the returned dict")
        return {**state, SAVED: of_users}

    def state(self, callback: Callback, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``callback``, one of these, has kept in the checkpoint whose driver's part is
        ``earlier``. One of an earlier version has the values of all callbacks together."""
        if SAVED not in earlier:
            return dict(earlier)
        name = next((name for name, each in self._saving().items() if each is callback), None)
        if name is None:
            raise ValueError(f"saved_state({callback!r:.80}): it is no callback of the run")
        return dict(earlier[SAVED].get(name, {}))

    def extend_summary(self, summary: dict[str, Any]) -> None:
        """Have all callbacks extend a summary, but for what JSON cannot hold. Raises the first
        error of a callback, or TypeError for such a value, afterwards."""
        problem: Exception | None = None
        for callback in self:
            before = dict(summary)
            try:
                self._call(callback, "extend_summary", summary)
            except Exception as error:
                problem = problem or error
            for name, value in [*summary.items()]:
                if name in before and value is before[name]:
                    continue
                try:
                    with _naming(callback, "extend_summary"):
                        _check_name(name, "the summary")
                        summary[name] = plain(value, f"summary[{name!r}]")
                except TypeError as error:
                    problem = problem or error
                    if name in before:
                        summary[name] = before[name]
                    else:
                        del summary[name]
        if problem is not None:
            raise problem

    def uncalled_hooks(self) -> list[str]:
        """Return a sentence for each method that SampleForge does not call: its name is nearly that
        of a hook, or, in a benchmark, it is a hook of the user's that waits for a report."""
        hooks = [name for name in dir(Callback) if name.startswith(HOOKS)]
        told = []
        for cls in dict.fromkeys(map(type, self)):
            for name in dir(cls):
                if name.startswith(HOOKS) and name not in hooks and callable(getattr(cls, name)):
                    for near in nearest(name, hooks, 1):
                        told.append(
                            f"{cls.__name__}.{name} is no hook, so that SampleForge never calls "
                            f"it. Did you mean {near}?"
                        )
        for hook in OF_REPORTS if self._session.config.benchmark else ():
            for callback in self.having(hook):
                if _is_users(callback, hook):
                    told.append(
                        f"{type(callback).__name__}.{hook} is never called: --benchmark makes no "
                        "reports. on_poll and on_episode_record are called"
                    )
        return told

    def _call(self, callback: Callback, hook: str, *args: Any) -> Any:
        with _naming(callback, hook):
            return getattr(callback, hook)(self._session, *args)

    def _saving(self) -> dict[str, Callback]:
        """Return the callbacks that may keep something of the user's in a checkpoint, by the names
        of their classes, further ones of a class with a number."""
        found: dict[str, Callback] = {}
        for callback in self:
            if not _is_users(callback, "checkpoint_state"):
                continue
            name = type(callback).__qualname__
            same = sum(type(each).__qualname__ == name for each in found.values())
            found[f"{name} {same + 1}" if same else name] = callback
        return found


SAVED = "callbacks"
"""Key in the driver's part of a checkpoint: what callbacks of users keep there, by their names."""
OF_REPORTS = ("extend_report", "on_report", "on_evaluation")
"""The hooks that are called for reports only."""
KEPT = ("env_steps", "wall_s")
"""Scalars that every report has."""
HOOKS = ("on_", "extend_", "checkpoint_")
"""How the names of hooks begin."""


@contextmanager
def _naming(callback: Callback, hook: str) -> Iterator[None]:
    """Add a note that names a hook of the user's to an exception that is raised in the context."""
    try:
        yield
    except Exception as error:
        if _is_users(callback, hook):
            name_cause(error, hook_name(callback, hook))
        raise


def _is_users(callback: Callback, hook: str) -> bool:
    """Return whether a hook of a callback is the user's own code."""
    owner = next((cls for cls in type(callback).__mro__ if hook in vars(cls)), Callback)
    return hook in vars(callback) or owner.__module__.partition(".")[0] != "sampleforge"


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{where} has the name {name!r:.80}, which must be a text")


def _number(value: Any, where: str) -> float:
    """Return a number of Python's. Raises TypeError, which names ``where``, for another value."""
    if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
        return value
    if not isinstance(value, str):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{where} is {value!r:.80}, but must be a number")


def plain(value: Any, where: str) -> Any:
    """Return a value that JSON can hold: numpy's numbers as Python's, tuples as lists. Raises
    TypeError, which names ``where``, for any other one."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be texts")
        return {key: plain(each, f"{where}[{key!r}]") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, f"{where}[{index}]") for index, each in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"{where} is of the type {type(value).__name__}, but must be a number, a text, or a list "
        "or dict of these (of an array: .tolist())"
    )


def adds_metrics(callback: Callback) -> bool:
    """Return whether a callback may add metrics to reports, also from workers."""
    in_workers = any(overrides(callback, hook) for hook in WORKER_HOOKS)
    own = callback.extend_report
    return in_workers or getattr(own, "__func__", own) is not Callback.extend_report


def callbacks_of(given: Sequence[Callback], names: Sequence[str]) -> list[Callback]:
    """Return the callbacks ``given``, and an object of each of the classes ``names``,
    package.module:Class (``--callbacks``). Raises ConfigError as `checked`, and if there is no
    class of a name."""
    return [*checked(given), *(_named(name) for name in names)]


def checked(given: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks ``given``. Raises ConfigError for one that is not an object of a class
    derived from `Callback`, and for one that is not in a list."""
    if isinstance(given, Callback):
        name = type(given).__name__
        raise ConfigError(f"callbacks={name}() must be a list of callbacks: give [{name}()]")
    given = tuple(given)
    for callback in given:
        if not isinstance(callback, Callback):
            is_class = isinstance(callback, type)
            name = callback.__name__ if is_class else repr(callback)
            raise ConfigError(
                f"callbacks=[...] has {name}, but must have objects of classes derived from "
                f"sampleforge.Callback{f': give {name}()' if is_class else ''}"
            )
    return given


def _named(name: str) -> Callback:
    module_name, _, attribute = name.partition(":")
    module = import_user_module("--callbacks", name)
    cls = getattr(module, attribute, None)
    if isinstance(cls, type) and issubclass(cls, Callback):
        return cls()
    known = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Callback) and value is not Callback
    ]
    near = nearest(attribute, known, 1)
    hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
    raise ConfigError(
        f"--callbacks {name}: {module_name} has no class {attribute!r} that is derived from "
        f"sampleforge.Callback.{hint}"
    )

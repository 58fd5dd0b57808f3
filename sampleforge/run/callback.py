"""What takes part in a session without being part of it: the base class of all callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from sampleforge.config import ConfigError, nearest
from sampleforge.env.user_code import import_user_module
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
        length. (`on_episode_end` runs in the actor, beside the environment.)"""

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        """A report is being made: add scalars to it, or change them; ``env_steps`` and ``wall_s``
        must stay."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        """A report is due: its scalars, as metrics.jsonl has them."""

    def on_evaluation(self, session: Session, evaluation: Mapping[str, float]) -> None:
        """The evaluator has finished: the ``eval_*`` scalars of its result."""

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        """Return plain values that each policy's checkpoint is to hold beside the learner's state;
        a resumed session finds them in ``session.opened.earlier``."""
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
        """The summary is being made: add values to it."""

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


def tell(callback: Callback, hook: str, session: Session, *args: Any) -> Any:
    """Call a hook of a callback, and return what it returns. An exception passes through, with a
    note that names the callback and the hook. (SampleForge's own callbacks raise errors that
    explain themselves.)"""
    try:
        return getattr(callback, hook)(session, *args)
    except Exception as error:
        if type(callback).__module__.partition(".")[0] != "sampleforge":
            name_cause(error, hook_name(callback, hook))
        raise


def adds_metrics(callback: Callback) -> bool:
    """Return whether a callback may add metrics to reports, also from workers."""
    in_workers = any(overrides(callback, hook) for hook in WORKER_HOOKS)
    return in_workers or type(callback).extend_report is not Callback.extend_report


def callbacks_of(given: Sequence[Callback], names: Sequence[str]) -> list[Callback]:
    """Return the callbacks ``given``, and an object of each of the classes ``names``,
    package.module:Class (``--callbacks``). Raises ConfigError for one that is not an object of a
    class derived from `Callback`, and if there is no class of a name."""
    for callback in given:
        if not isinstance(callback, Callback):
            is_class = isinstance(callback, type)
            name = callback.__name__ if is_class else repr(callback)
            raise ConfigError(
                f"callbacks=[...] has {name}, but must have objects of classes derived from "
                f"sampleforge.Callback{f': give {name}()' if is_class else ''}"
            )
    return [*given, *(_named(name) for name in names)]


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

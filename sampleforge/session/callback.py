"""What takes part in a session without being part of it: the base class of all callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from sampleforge.session.session import Session
    from sampleforge.shared.records import EpisodeRecord

Level = Literal["debug", "info", "warning", "alert", "error", "result"]
"""Of a message; an alert is a warning that a quiet screen shows, too."""


class Message(NamedTuple):
    """What the user is to know. ``source``: the worker that says it, or "session"."""

    text: str
    level: Level = "info"
    source: str = "session"


class Callback:
    """Override what you need; every method does nothing here.

    Callbacks are called in the order in which the session was given them, by the thread that
    iterates over its reports. What one raises ends the session.
    """

    def on_wire(self, session: Session) -> None:
        """The run folder is open and ``session.resolved`` is the config with all defaults; the
        workers are about to be made. May set ``session.hyperparameters``,
        ``session.env_steps_of`` and ``session.schedule``."""

    def on_start(self, session: Session) -> None:
        """The workers have been started."""

    def on_poll(self, session: Session) -> None:
        """Several times a second, while the workers work."""

    def on_episode(self, session: Session, episode: EpisodeRecord) -> None:
        """An episode of the training has ended: its actor, split, row, return and length."""

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        """A report is being made: add scalars to it."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        """A report is due: its scalars, as metrics.jsonl has them."""

    def on_evaluation(self, session: Session, evaluation: Mapping[str, float]) -> None:
        """The evaluator has finished: the ``eval_*`` scalars of its result."""

    def checkpoint_state(self, session: Session) -> Mapping[str, Any]:
        """Return plain values that each policy's checkpoint is to hold beside the learner's state;
        a resumed session finds them in ``session.opened.policies``."""
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

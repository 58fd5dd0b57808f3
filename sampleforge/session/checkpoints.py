"""The callback that writes checkpoints: in intervals, and when the training ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sampleforge.folder.resume import SaveCheckpoint
from sampleforge.folder.saving import CheckpointTimer, Saving
from sampleforge.runners.base import WorkerDied
from sampleforge.session.callback import Callback

if TYPE_CHECKING:
    from sampleforge.session.session import Session

ANSWER_TIMEOUT = 300.0
URGENT_TIMEOUT = 2.0
"""Seconds for the last checkpoint of a session that was interrupted."""


class Checkpoints(Callback):
    """Has learner 0 of the policy group write checkpoints. Every session has one.

    ``writes``: whether it does; what only samples or measures has nothing to keep.
    """

    def __init__(self, session: Session) -> None:
        graph, config = session.graph, session.config
        self._group = graph.group
        self.writes = not (config.sampler_only or config.benchmark)
        self._saving = Saving(
            session.opened.replays,
            self._group.archive,
            config.milestone_interval,
            lambda: graph.progress.env_steps,
        )

    def on_start(self, session: Session) -> None:
        counters = session.graph.counters
        self._timer = CheckpointTimer(
            session.config.checkpoint_interval, lambda: counters.total("updates") > 0
        )

    def on_poll(self, session: Session) -> None:
        if self.writes and self._timer.due:
            self._timer.restart()
            self.save(session)

    def on_stop(self, session: Session) -> None:
        if not self.writes:
            return
        if not session.is_interrupted():
            self.save(session)
            return
        try:
            self.save(session, URGENT_TIMEOUT)
        except (TimeoutError, WorkerDied):
            snapshot = self._group.snapshot
            if snapshot is None or snapshot.version < 0:
                raise
            self._save_snapshot(session)

    def save(self, session: Session, timeout: float = ANSWER_TIMEOUT) -> None:
        """Write a checkpoint now. Raises OSError if it cannot be written; see `Saving`."""

        def ask(kind: str, about: dict[str, Any], timeout: float) -> Any:
            return session.runner.ask(self._group.learner, kind, about, timeout)

        about = partial(_state, session)
        env_steps = self._saving.save(ask, session.work, about, timeout, session.message)
        session.checkpoint_written(env_steps)

    def _save_snapshot(self, session: Session) -> None:
        """Write the checkpoint in the place of a learner that does not do so in time."""
        snapshot = self._group.snapshot
        assert snapshot is not None
        session.kill()  # one process writes at a time
        tensors, plain = snapshot.read()

        def write(_kind: str, about: dict[str, Any], _timeout: float) -> str | None:
            try:
                SaveCheckpoint(session.opened.store)(tensors, {**about, "learner": plain})
            except OSError as error:
                return f"{type(error).__name__}: {error}"
            return None

        about = partial(_state, session)
        env_steps = self._saving.save(write, lambda: None, about, 0.0, session.message)
        session.message(
            f"the learner did not write the checkpoint in time: it holds update "
            f"{plain['version']:,}, as kept in shared memory",
            "warning",
        )
        session.checkpoint_written(env_steps)


def _state(session: Session) -> dict[str, Any]:
    """Return the session's part of a checkpoint."""
    return {
        "wall_s": session.graph.progress.wall_s,
        "resumes": session.resume_point.resumes,
        "statistics": session.statistics.state(),
        **session.statistics.rating(),
    }

"""The callback that writes checkpoints: in intervals, and when the training ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sampleforge.folder.resume import SaveCheckpoint
from sampleforge.folder.saving import CheckpointTimer, Saving
from sampleforge.runners.base import WorkerDied
from sampleforge.session.callback import Callback

if TYPE_CHECKING:
    from sampleforge.folder.opening import StoredPolicy
    from sampleforge.reporting.policy_statistics import PolicyStatistics
    from sampleforge.session.session import Session
    from sampleforge.shared.state_snapshot import StateSnapshot
    from sampleforge.topologies.graph import PolicyGroup

ANSWER_TIMEOUT = 300.0
URGENT_TIMEOUT = 2.0
"""Seconds for the last checkpoint of a session that was interrupted."""


class Checkpoints(Callback):
    """Has learner 0 of each policy group write checkpoints. Every session has one.

    ``writes``: whether it does; what only samples or measures has nothing to keep.
    """

    def __init__(self, session: Session) -> None:
        config, policies = session.config, session.opened.policies
        self.writes = not (config.sampler_only or config.benchmark)
        self._policies = [
            PolicyCheckpoints(session, *parts)
            for parts in zip(
                session.graph.groups, policies, session.statistics.policies, strict=True
            )
        ]

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
        if self.writes:
            self._save_all(session, last=True)

    def save(self, session: Session) -> None:
        """Write a checkpoint now. Raises OSError if it cannot be written; see `Saving`."""
        self._save_all(session, last=False)

    def _save_all(self, session: Session, *, last: bool) -> None:
        """Write the checkpoint of every policy, and tell the session of it. ``last``: the training
        has ended."""
        for policy in self._policies:
            env_steps = policy.save_last(session) if last else policy.save(session)
        session.checkpoint_written(env_steps)


class PolicyCheckpoints:
    """Writes the checkpoints of one policy group into its folder."""

    def __init__(
        self,
        session: Session,
        group: PolicyGroup,
        stored: StoredPolicy,
        statistics: PolicyStatistics,
    ) -> None:
        progress = session.graph.progress
        self._group = group
        self._store = stored.store
        self._statistics = statistics
        self._saving = Saving(
            stored.replays,
            group.archive,
            session.config.milestone_interval,
            lambda: progress.env_steps,
        )

    def save(self, session: Session, timeout: float = ANSWER_TIMEOUT) -> int:
        """Have the learner write a checkpoint; returns its env steps. Raises OSError."""

        def ask(kind: str, about: dict[str, Any], timeout: float) -> Any:
            return session.runner.ask(self._group.learner, kind, about, timeout)

        about = partial(self._state, session)
        return self._saving.save(ask, session.work, about, timeout, session.message)

    def save_last(self, session: Session) -> int:
        """As `save`, at the end of the training; what was interrupted does not wait for long."""
        if not session.is_interrupted():
            return self.save(session)
        try:
            return self.save(session, URGENT_TIMEOUT)
        except (TimeoutError, WorkerDied):
            snapshot = self._group.snapshot
            if snapshot is None or snapshot.version < 0:
                raise
            return self._save_snapshot(session, snapshot)

    def _save_snapshot(self, session: Session, snapshot: StateSnapshot) -> int:
        """Write the checkpoint in the place of a learner that does not do so in time."""
        session.kill()  # one process writes at a time
        tensors, plain = snapshot.read()

        def write(_kind: str, about: dict[str, Any], _timeout: float) -> str | None:
            try:
                SaveCheckpoint(self._store)(tensors, {**about, "learner": plain})
            except OSError as error:
                return f"{type(error).__name__}: {error}"
            return None

        about = partial(self._state, session)
        env_steps = self._saving.save(write, lambda: None, about, 0.0, session.message)
        session.message(
            f"the learner did not write the checkpoint in time: it holds update "
            f"{plain['version']:,}, as kept in shared memory",
            "warning",
        )
        return env_steps

    def _state(self, session: Session) -> dict[str, Any]:
        """Return the session's part of a checkpoint."""
        return {
            "wall_s": session.graph.progress.wall_s,
            "resumes": session.resume_point.resumes,
            "statistics": session.statistics.state(self._statistics),
            **self._statistics.rating(),
        }

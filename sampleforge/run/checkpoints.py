"""The callback that writes checkpoints: in intervals, and when the training ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from sampleforge.run.callback import Callback
from sampleforge.run.folder.resume import SaveCheckpoint
from sampleforge.run.folder.saving import Ask, CheckpointTimer, Saving
from sampleforge.runners.base import WorkerDied
from sampleforge.workers.config import answer_timeout

if TYPE_CHECKING:
    from sampleforge.run.folder.opening import StoredPolicy
    from sampleforge.run.reports.policy_statistics import PolicyStatistics
    from sampleforge.run.session import Session
    from sampleforge.shared.newest import StateSnapshot
    from sampleforge.topologies.graph import PolicyGroup

URGENT_TIMEOUT = 2.0
"""Seconds for the last checkpoint of a session that ends early, if the learner's state is in shared
memory as well."""
LAST_TIMEOUT = 30.0
"""Seconds for it if the learner alone has its state: it answers between two updates."""
WHILE_WAITING = 0.05


class Checkpoints(Callback):
    """Has learner 0 of each policy group write checkpoints. Every session has one.

    ``writes``: whether it does; what only samples or measures has nothing to keep.
    """

    def __init__(self, session: Session) -> None:
        config, policies = session.config, session.opened.policies
        self.writes = not (config.sampler_only or config.benchmark)
        counters = session.graph.counters
        self._has_learned: Callable[[], bool] = lambda: counters.total("updates") > 0
        self._policies = [
            PolicyCheckpoints(session, *parts)
            for parts in zip(
                session.graph.groups, policies, session.statistics.policies, strict=True
            )
        ]

    def on_start(self, session: Session) -> None:
        self._timer = CheckpointTimer(session.config.checkpoint_interval, self._has_learned)

    def on_poll(self, session: Session) -> None:
        if self.writes and (self._timer.due or self._milestone_passed()):
            self._timer.restart()
            self.save(session)

    def _milestone_passed(self) -> bool:
        return any(policy.milestone_passed for policy in self._policies)

    def on_stop(self, session: Session) -> None:
        if self.writes:
            self.save(session)

    def save(self, session: Session) -> int:
        """Write a checkpoint of every policy now, and tell the session of it; returns its env
        steps. Raises OSError if it cannot be written; see `Saving`."""
        session.folder.check_there()
        for policy in self._policies:
            env_steps = policy.save(session)
        session.checkpoint_written(env_steps)
        return env_steps

    def save_after_failure(self, session: Session) -> int | None:
        """As `save`, in a session that has failed; None if there is nothing to save."""
        return self.save(session) if self.writes and self._has_learned() else None


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
        self._is_last = False
        self._saving = Saving(
            stored.replays,
            group.archive,
            session.config.milestone_interval,
            lambda: progress.env_steps,
        )

    @property
    def milestone_passed(self) -> bool:
        """Whether a checkpoint is due that is never removed."""
        return self._saving.milestone_passed

    def save(self, session: Session) -> int:
        """Have the learner write a checkpoint; returns its env steps. Raises OSError.

        In a session that ends early, the state in shared memory is written in the place of a
        learner that does not do so soon. There is no later checkpoint then.
        """
        if self._is_last:
            return session.graph.progress.env_steps
        about = partial(self._state, session)
        wait, timeout = partial(_let_work, session), answer_timeout(session.resolved)
        try:
            return self._saving.save(
                self._learner_writes(session), wait, about, timeout, session.message
            )
        except (TimeoutError, WorkerDied):
            snapshot = self._group.snapshot
            if not session.ends_early or snapshot is None or snapshot.version < 0:
                raise
            self._is_last = True
            return self._save_snapshot(session, snapshot)

    def _learner_writes(self, session: Session) -> Ask:
        learner, snapshot = self._group.learner, self._group.snapshot
        began: float | None = None
        told = False

        def waiting() -> None:
            """Once the session is to end early, wait for a shorter time."""
            nonlocal began, told
            if not session.ends_early:
                return
            began = began or monotonic()
            waited = monotonic() - began
            if waited > LAST_TIMEOUT:
                raise TimeoutError(
                    f"{learner.name} did not write the last checkpoint within {LAST_TIMEOUT:.0f} s"
                )
            if waited <= URGENT_TIMEOUT:
                return
            if snapshot is not None and snapshot.version >= 0:
                raise TimeoutError(f"{learner.name} did not write the last checkpoint in time")
            if not told:
                told = True
                session.runner.wake(learner)
                session.alert(
                    f"Waiting up to {LAST_TIMEOUT:.0f} s for {learner.name}: it writes the last "
                    "checkpoint after its current update (Ctrl-C ends the run without it)"
                )

        def ask(kind: str, about: dict[str, Any], timeout: float) -> Any:
            alone = session.ends_early
            return session.runner.ask(learner, kind, about, timeout, waiting=waiting, alone=alone)

        return ask

    def _save_snapshot(self, session: Session, snapshot: StateSnapshot) -> int:
        """Write the checkpoint in the place of a learner that does not do so in time."""
        session.kill()  # one process writes at a time
        tensors, plain = snapshot.read()

        def write(_kind: str, about: dict[str, Any], _timeout: float) -> str | None:
            try:
                SaveCheckpoint(self._store)(tensors, {**about, "learner": plain})
            except (OSError, ValueError) as error:  # ValueError: as for the learner itself
                return f"{type(error).__name__}: {error}"
            return None

        about = partial(self._state, session)
        env_steps = self._saving.save(
            write, lambda: None, about, 0.0, session.message, with_replay=False
        )
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
            **session.callback_state(),
        }


def _let_work(session: Session) -> None:
    """Let the workers work for a moment, and those that are left of a failed session."""
    if session.has_failed:
        sleep(WHILE_WAITING)
    else:
        session.work()

"""The callback that has checkpoints written: in intervals, and when the training ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from sampleforge.run.callback import Callback
from sampleforge.run.folder.files import CannotWrite
from sampleforge.run.folder.replays import Reference
from sampleforge.runners.base import WorkerDied
from sampleforge.topologies.registry import settings_of_actions

if TYPE_CHECKING:
    from sampleforge.run.opening import StoredPolicy
    from sampleforge.run.reports.policy_statistics import PolicyStatistics
    from sampleforge.run.session import Session
    from sampleforge.shared.newest import StateSnapshot
    from sampleforge.topologies.graph import PolicyGroup

FIRST_CHECKPOINT_S = 30.0
"""Seconds after which the first checkpoint is written, if there was an update by then."""
URGENT_TIMEOUT = 2.0
"""Seconds for the last checkpoint of a session that ends early, if the learner's state is in shared
memory as well."""
LAST_TIMEOUT = 30.0
"""Seconds for it if the learner alone has its state: it answers between two updates."""
WHILE_WAITING = 0.05


class CheckpointNotWritten(CannotWrite):
    """A checkpoint or its replay could not be written; the message says what has been saved."""


class CheckpointTimer:
    """Tells when a checkpoint is due: every ``interval`` seconds, and the first one earlier, so
    that a run that is killed soon after its start can be resumed."""

    def __init__(
        self,
        interval: float,
        has_learned: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._interval = interval
        self._has_learned = has_learned
        self._clock = clock
        self._early: float | None = clock() + min(FIRST_CHECKPOINT_S, interval)
        self._next = clock() + interval

    @property
    def due(self) -> bool:
        """Whether a checkpoint is to be written now."""
        now = self._clock()
        if now >= self._next:
            return True
        return self._early is not None and now >= self._early and self._has_learned()

    def restart(self) -> None:
        """Restart the interval, because a checkpoint is being written."""
        self._early = None
        self._next = self._clock() + self._interval


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
        if not self.writes:
            return
        try:
            self.save(session)
        except TimeoutError as error:
            if self._has_learned() or not session.is_interrupted():
                raise
            session.alert(
                f"{error}: nothing was learned since the start, and earlier checkpoints stay"
            )

    def save(self, session: Session) -> int:
        """Write a checkpoint of every policy now, and tell the session of it; returns its env
        steps. Raises OSError if it cannot be written; see `PolicyCheckpoints.save`."""
        session.folder.check_there()
        for policy in self._policies:
            env_steps = policy.save(session)
        session.checkpoint_written(env_steps)
        return env_steps

    def save_after_failure(self, session: Session) -> int | None:
        """As `save`, in a session that has failed; None if there is nothing to save."""
        return self.save(session) if self.writes and self._has_learned() else None


class PolicyCheckpoints:
    """Writes the checkpoints of one policy group into its folder: first its replay, with
    --save-replay, then the learner's state, which names the replay."""

    def __init__(
        self,
        session: Session,
        group: PolicyGroup,
        stored: StoredPolicy,
        statistics: PolicyStatistics,
    ) -> None:
        self._group = group
        self._store = stored.store
        self._replays = stored.replays
        self._statistics = statistics
        self._progress = session.graph.progress
        self._milestones = session.config.milestone_interval
        self._last_saved = self._progress.env_steps
        self._is_last = False

    @property
    def milestone_passed(self) -> bool:
        """Whether a checkpoint is due that is never removed: a milestone lies between the last
        checkpoint and now."""
        every = self._milestones
        if every is None:
            return False
        return self._progress.env_steps // every > self._last_saved // every

    def save(self, session: Session) -> int:
        """Have the learner write a checkpoint; returns its env steps. Raises CheckpointNotWritten
        if something cannot be saved: the previous checkpoint is then kept; if only the replay could
        not be saved, the new checkpoint names the previous replay.

        In a session that ends early, the state in shared memory is written in the place of a
        learner that does not do so soon. There is no later checkpoint then.
        """
        if self._is_last:
            return self._progress.env_steps
        try:
            replay, problem = self._replays.save(
                self._group.archive,
                lambda: self._progress.env_steps,
                partial(_let_work, session),
                session.message,
            )
            env_steps = self._write(session, partial(self._ask_learner, session), replay)
        except (TimeoutError, WorkerDied):
            snapshot = self._group.snapshot
            if not session.ends_early or snapshot is None or snapshot.version < 0:
                raise
            self._is_last = True
            return self._write_snapshot(session, snapshot)
        if problem is not None:
            raise CheckpointNotWritten(problem)
        return env_steps

    def _write(
        self,
        session: Session,
        write: Callable[[dict[str, Any]], str | None],
        replay: Reference | None,
    ) -> int:
        """Have ``write`` write a checkpoint that names ``replay``; returns its env steps. ``write``
        gets the session's part, and returns what has failed, or None."""
        env_steps = self._progress.env_steps
        config = session.run_plan.config_of(self._group.id)
        about = {
            "wall_s": self._progress.wall_s,
            "resumes": session.resume_point.resumes,
            "statistics": session.statistics.state(self._statistics),
            **self._statistics.rating(),
            **session.callback_state(),
            "configured": session.run_plan.pairing.algorithm.hyperparameters(config),
            "of_actions": settings_of_actions(config),
            "env_steps": env_steps,
            "milestone": self.milestone_passed,
            "replay": replay,
        }
        problem = write(about)
        self._last_saved = env_steps
        if problem is not None:
            raise CheckpointNotWritten(self._replays.explain_checkpoint(problem))
        self._replays.prune(replay)
        return env_steps

    def _ask_learner(self, session: Session, about: dict[str, Any]) -> str | None:
        """Have the learner write. Raises TimeoutError or WorkerDied, see `Runner.ask`; once the
        session is to end early, it is waited for for a shorter time."""
        learner, snapshot = self._group.learner, self._group.snapshot
        began: float | None = None
        told = False

        def waiting() -> None:
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

        timeout, alone = session.run_plan.answer_timeout, session.ends_early
        problem: str | None = session.runner.ask(
            learner, "save", about, timeout, waiting=waiting, alone=alone
        )
        return problem

    def _write_snapshot(self, session: Session, snapshot: StateSnapshot) -> int:
        """Write the checkpoint in the place of a learner that does not do so in time, with the
        previous replay: no shard can save another."""
        session.kill()  # one process writes at a time
        tensors, plain = snapshot.read()

        def write(about: dict[str, Any]) -> str | None:
            try:
                self._store.save_state(tensors, {**about, "learner": plain})
            except (OSError, ValueError) as error:  # ValueError: as for the learner itself
                return f"{type(error).__name__}: {error}"
            return None

        replay = None if self._group.archive is None else self._replays.latest
        env_steps = self._write(session, write, replay)
        session.message(
            f"the learner did not write the checkpoint in time: it holds update "
            f"{plain['version']:,}, as kept in shared memory",
            "warning",
        )
        return env_steps


def _let_work(session: Session) -> None:
    """Let the workers work for a moment, and those that are left of a failed session."""
    if session.has_failed:
        sleep(WHILE_WAITING)
    else:
        session.work()

"""How a session ends: what it was asked for, the evaluation of the last weights, the last report
after an interrupt, and what has ended it in words."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

from sampleforge.config import typed

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.graph import PolicyGroup


class Ending:
    """What a session was asked for, and whether it has failed. It is set without a lock: a signal
    handler must not wait for one. Functions that ask it hold it, not the session, which can be
    freed before them."""

    stopping = False
    """Asked to finish now, in order."""
    interrupted = False
    """Asked to finish within seconds."""
    failed = False
    """Ended by an error: some workers may be gone."""

    def interrupt(self) -> None:
        self.interrupted = self.stopping = True

    def is_early(self) -> bool:
        """Whether what is written at the end must not take long."""
        return self.interrupted or self.failed


PATIENCE_S = 120.0
"""Seconds after the end of the training within which the learners of a policy must have published
its last weights."""


def last_evaluation(session: Session, patience: float = PATIENCE_S) -> Iterator[dict[str, float]]:
    """Have the evaluators of all policies evaluate the last weights, those of the last checkpoint,
    unless that was done; yields the reports of these evaluations. Ends early when the session is
    interrupted. The training must be over. ``patience``: see `PATIENCE_S`."""
    groups = [group for group in session.graph.groups if group.evaluations is not None]
    groups = [group for group in groups if _finish(session, group, patience)]
    if not groups:
        return
    waiting = _waiting(session, groups)
    if waiting and not session.is_interrupted():
        episodes = session.resolved.evaluate_episodes
        session.message(f"Evaluating the last weights with {episodes:,} episodes")
    session.graph.progress.clock.settle()
    while waiting and not session.is_interrupted():
        session.work()
        while session.statistics.evaluation_waits:
            yield session.report()
        waiting = _waiting(session, waiting)


def _finish(session: Session, group: PolicyGroup, patience: float) -> bool:
    """Wait until the learners of a policy have published their last weights; return whether they
    have. (A learner that does not answer at all is replaced, see `Runner.ask`.)"""
    asked = monotonic()
    while session.ask_learner(group, "finish") is None and not session.is_interrupted():
        if monotonic() - asked > patience:
            session.alert(
                f"The last weights of {group.learner.name} are not evaluated: it has not published "
                f"them within {patience:g} s of the end. `sampleforge eval` evaluates the last "
                "checkpoint"
            )
            return False
        session.work()
    return True


def _waiting(session: Session, groups: list[PolicyGroup]) -> list[PolicyGroup]:
    """Return those of ``groups`` whose last weights have no evaluation yet."""
    done = {
        policy.id: policy.last_evaluation.get("eval_policy_version")
        for policy in session.statistics.policies
    }
    return [group for group in groups if done[group.id] != group.weights.version]


HALT_S = 0.5
"""Most seconds in which, after an interrupt, workers complete the env steps that they are in."""


def last_report(session: Session) -> None:
    """Have an interrupted session make its last report, of all env steps: no more are taken from
    now on. If there is nothing new since the one before, there is none.

    Ranks go on: one that is ahead waits for the gradients of the others, whose rollouts must end
    for that. What is missing without this report is only the end of the curves: a second Ctrl-C in
    the library, and a callback of the user's that asks a worker which is gone, leave it out. The
    last checkpoint follows."""
    from sampleforge.runners.base import WorkerDied

    with suppress(KeyboardInterrupt, TimeoutError, WorkerDied):
        if not session.graph.having("rank"):
            session.graph.progress.clock.halt()
            _wait_for_halt(session)
        session.take_results()
        if session.statistics.has_news:
            session.report()
        while session.statistics.evaluation_waits:
            session.report()


def _wait_for_halt(session: Session) -> None:
    """Wait until no process takes an env step any more: each shows that it is alive before it looks
    whether it is to halt."""
    graph, halted = session.graph, monotonic()
    rows = [node.counter_row for node in graph.having("actor", "dataset")]
    while session.runner.pids() and monotonic() < halted + HALT_S:
        if (graph.counters.column("heartbeat")[rows] >= halted).all():
            return
        sleep(0.01)


def answer_at_once(session: Session, group: PolicyGroup) -> Mapping[str, float]:
    """Return the metrics of a policy's learner since the last report in an interrupted session;
    none if it does not answer at once: it may be gone."""
    from sampleforge.runners.base import WorkerDied

    with suppress(TimeoutError, WorkerDied):
        metrics: Mapping[str, float] = session.runner.ask(
            group.learner, "metrics", None, 0.0, alone=True
        )
        return metrics
    return {}


def note_sizes(session: Session, error: BaseException) -> None:
    """Add to an error for which a GPU had not enough memory what the run has on it."""
    from sampleforge.run.screen.messages import plan_line
    from sampleforge.workers.worker import GPU_FULL

    if GPU_FULL not in describe(error) or getattr(error, "__notes__", None):
        return
    config, names = session.resolved, ("minibatch_size", "replay_gpu_memory")
    given = {name: getattr(config, name, None) for name in names}
    more = [typed(name, value) for name, value in given.items() if value]
    error.add_note(f"This run has {', '.join([plan_line(config, session.plan), *more])}")


def describe(error: BaseException) -> str:
    """Return an error as text, with its notes: a worker's death ends with the worker's own
    traceback, and where the session was when it noticed says nothing; so it is with a lost rank, or
    a full disk."""
    from sampleforge.peers.group import RankLost
    from sampleforge.run.checkpoints import CheckpointNotWritten
    from sampleforge.run.folder.checkpoint import CheckpointError
    from sampleforge.run.folder.files import CannotWrite
    from sampleforge.run.folder.run_folder import RunFolderGone
    from sampleforge.run.watches import EnvironmentFails
    from sampleforge.runners.base import WorkerDied
    from sampleforge.workers.metrics import DivergedError
    from sampleforge.workers.worker import out_of_memory

    notes = getattr(error, "__notes__", [])
    of_folder = (CannotWrite, CheckpointError, CheckpointNotWritten, RunFolderGone)
    if isinstance(error, (WorkerDied, RankLost, EnvironmentFails, DivergedError, *of_folder)):
        return "\n".join([str(error), *notes])
    if (text := out_of_memory(error)) is not None:  # of a worker in this process (--serial)
        return "\n".join([text, *notes])
    return "".join(traceback.format_exception(error)).rstrip()

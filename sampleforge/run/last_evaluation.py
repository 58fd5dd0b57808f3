"""The evaluation of the last weights, when the training is over."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from sampleforge.workers.config import answer_timeout

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.graph import PolicyGroup


def last_evaluation(session: Session) -> Iterator[dict[str, float]]:
    """Have the evaluators of all policies evaluate the last weights, those of the last checkpoint,
    unless that was done; yields the reports of these evaluations. Ends early when the session is
    interrupted. The training must be over."""
    groups = [group for group in session.graph.groups if group.evaluations is not None]
    if not groups:
        return
    for group in groups:
        _finish(session, group)
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


def _finish(session: Session, group: PolicyGroup) -> None:
    """Wait until the learners of a policy have published their last weights."""
    asked, timeout = monotonic(), answer_timeout(session.resolved)
    while session.ask_learner(group, "finish") is None and not session.is_interrupted():
        if monotonic() - asked > timeout:
            raise TimeoutError(f"{group.learner.name} did not end within {timeout:g} s")
        session.work()


def _waiting(session: Session, groups: list[PolicyGroup]) -> list[PolicyGroup]:
    """Return those of ``groups`` whose last weights have no evaluation yet."""
    done = {
        policy.id: policy.evaluations.last.get("eval_policy_version")
        for policy in session.statistics.policies
    }
    return [group for group in groups if done[group.id] != group.weights.version]

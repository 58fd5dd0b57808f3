"""The evaluation of the last weights, when the training is over."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.graph import PolicyGroup


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
        policy.id: policy.evaluations.last.get("eval_policy_version")
        for policy in session.statistics.policies
    }
    return [group for group in groups if done[group.id] != group.weights.version]

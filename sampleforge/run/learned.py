"""The callback that says whether a run has learned: one that only pretends to is a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sampleforge.run.callback import Callback, Message
from sampleforge.workers.metrics import SKIPPED, DivergedError

if TYPE_CHECKING:
    from sampleforge.run.session import Session


class Learned(Callback):
    """Warns of a run that ends before its first update, at its start if that is known then, and at
    its end. Ends a run of which no update was applied, at its last report, with DivergedError.
    Every session has one."""

    def __init__(self) -> None:
        self._cause = "no gradient was finite"

    def on_message(self, session: Session, message: Message) -> None:
        if SKIPPED in message.text:
            self._cause = message.text

    def on_start(self, session: Session) -> None:
        config, progress = session.resolved, session.graph.progress
        limit, from_data = config.train_for_env_steps, getattr(config, "datasets", ())
        resumes_replay = session.opened.earlier and getattr(config, "save_replay", False)
        if limit is None or _learns_nothing(session) or from_data or resumes_replay:
            return
        if session.graph.having("rank"):
            return  # ranks end after an update
        left = limit - progress.env_steps
        needed, why = min(_first_update(session, policy) for policy in session.roles.trained)
        if 0 < left < needed:
            session.message(
                f"--train-for-env-steps {limit}: nothing will be learned from the {left:,} env "
                f"steps that are left, because {why}; raise it",
                "warning",
            )

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if not session.is_ending or session.is_interrupted():
            return
        for policy in session.statistics.policies:
            made, applied = policy.updates_since_start
            if made and not applied:
                raise DivergedError(
                    f"{_subject(session, policy.id)} has learned nothing: none of its {made:,} "
                    f"updates was applied: {self._cause}"
                )

    def on_stop(self, session: Session) -> None:
        steps = session.graph.total("env_steps")
        if session.is_interrupted() or _learns_nothing(session) or not steps:
            return
        for policy in session.statistics.policies:
            if not policy.updates_since_start[0]:
                why = _first_update(session, policy.id)[1]
                session.alert(
                    f"{_subject(session, policy.id)} has learned nothing: there was no update in "
                    f"{steps:,.0f} env steps, because {why}. Train for longer"
                )


def _subject(session: Session, policy: str) -> str:
    return "The run" if len(session.statistics.policies) == 1 else policy


def _learns_nothing(session: Session) -> bool:
    """Return whether the run is not to learn."""
    return session.resolved.sampler_only or session.resolved.benchmark


def _first_update(session: Session, policy: str) -> tuple[int, str]:
    """Return the env steps that the first update needs at least, and the reason in words."""
    plan = session.agents_of(policy).plan
    starts = getattr(session.resolved, "learning_starts", None)
    if starts is not None:
        why = (
            f"learning begins with {starts:,} transitions in the replay (--learning-starts), to "
            f"which whole rollouts are added, of {plan.rollout} steps x {plan.rows} env rows"
        )
        return max(starts, plan.rollout * plan.rows), why
    size = plan.batch_size
    return size, f"an update needs a batch of {size:,} env steps (--batch-size)"

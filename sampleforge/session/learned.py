"""The callback that says whether a run has learned: one that only pretends to is a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sampleforge.session.callback import Callback
from sampleforge.workers.metrics import DivergedError

if TYPE_CHECKING:
    from sampleforge.session.session import Session


class Learned(Callback):
    """Ends a run of which no update was applied, at its last report, with DivergedError; warns at
    its end of a run without an update. Every session has one."""

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        if not session.is_ending or session.is_interrupted():
            return
        for policy in session.statistics.policies:
            made, applied = policy.updates_since_start
            if made and not applied:
                raise DivergedError(
                    f"{_subject(session, policy.id)} has learned nothing: none of its {made:,} "
                    "updates was applied, because no gradient was finite; a warning in log.txt "
                    "names the cause"
                )

    def on_stop(self, session: Session) -> None:
        config, steps = session.resolved, session.graph.total("env_steps")
        if session.is_interrupted() or config.sampler_only or config.benchmark or not steps:
            return
        for policy in session.statistics.policies:
            if not policy.updates_since_start[0]:
                session.alert(
                    f"{_subject(session, policy.id)} has learned nothing: there was no update in "
                    f"{steps:,.0f} env steps ({_needed(session, policy.id)}). Train for longer"
                )


def _subject(session: Session, policy: str) -> str:
    return "The run" if len(session.statistics.policies) == 1 else policy


def _needed(session: Session, policy: str) -> str:
    """Return what the first update needs, in words."""
    starts = getattr(session.resolved, "learning_starts", None)
    if starts is not None:
        return f"learning begins with {starts:,} transitions in the replay, --learning-starts"
    size = session.agents_of(policy).plan.batch_size
    return f"an update needs a batch of {size:,} env steps, --batch-size"

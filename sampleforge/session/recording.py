"""The recording of a session: its figures in the reports, and its end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sampleforge.runners.base import WorkerDied
from sampleforge.session.callback import Callback
from sampleforge.topologies.graph import Recording

if TYPE_CHECKING:
    from sampleforge.session.session import Session

FINISH_S, FINISH_INTERRUPTED_S = 120.0, 2.5
"""Seconds that the recorder may take to write what was sampled, and after an interrupt."""


class RecordingReports(Callback):
    """Reports what was recorded, and has the recorder close the dataset before the workers end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def _figures(self, session: Session) -> dict[str, float]:
        counters, row = session.graph.counters, self._recording.node.counter_row
        recorded = {
            f"recorded_{name}": float(counters.column(f"recorded_{name}")[row])
            for name in ("steps", "episodes", "bytes")
        }
        return {**recorded, "record_dropped_steps": float(self._recording.queue.dropped_steps)}

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report.update(self._figures(session))

    def on_stop(self, session: Session) -> None:
        """Wait until the recorder has written all that was sampled. If that takes too long after an
        interrupt, the open segment is lost."""
        limit = FINISH_INTERRUPTED_S if session.is_interrupted() else FINISH_S
        with suppress(TimeoutError, WorkerDied):
            session.runner.ask(self._recording.node, "finish", None, limit, alone=True)
        dropped = self._recording.queue.dropped_steps
        if dropped:
            session.alert(
                f"The recording lacks {dropped:,} sampled env steps, and their episodes from there "
                "on: the recorder could not keep up"
            )

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        summary.update({name: int(value) for name, value in self._figures(session).items()})

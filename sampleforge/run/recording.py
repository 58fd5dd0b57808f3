"""The recording of a session: its figures in the reports, and its end."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from sampleforge.run.callback import Callback
from sampleforge.runners.base import WorkerDied
from sampleforge.topologies.graph import Recording
from sampleforge.workers.actor import END_RECORDING

if TYPE_CHECKING:
    from sampleforge.run.session import Session

SEND_S, SEND_INTERRUPTED_S = 10.0, 0.5
"""Seconds that all actors together may take to send their incomplete rollouts, and after an
interrupt."""
FINISH_S, FINISH_INTERRUPTED_S = 120.0, 2.0
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
        dropped = self._recording.queue.dropped
        return recorded | {
            "record_dropped_steps": float(dropped.steps),
            "record_dropped_episodes": float(dropped.episodes),
            "record_cut_episodes": float(dropped.cut_episodes),
            "record_lost_episodes": float(dropped.lost_episodes),
        }

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report.update(self._figures(session))

    def on_stop(self, session: Session) -> None:
        """Have the actors send what their incomplete rollouts have so far, and wait until the
        recorder has written all that was sampled. If that takes too long after an interrupt, the
        open segment is lost."""
        graph, interrupted = session.graph, session.is_interrupted()
        limit = monotonic() + (SEND_INTERRUPTED_S if interrupted else SEND_S)
        for node in graph.having("actor", "rank"):
            with suppress(TimeoutError, WorkerDied):
                left = max(0.0, limit - monotonic())
                session.runner.ask(node, END_RECORDING, None, left, alone=True)
        with suppress(TimeoutError, WorkerDied):
            left = FINISH_INTERRUPTED_S if interrupted else FINISH_S
            session.runner.ask(self._recording.node, "finish", None, left, alone=True)
        dropped = self._recording.queue.dropped
        if any(dropped):
            session.alert(f"The recording lacks {dropped}")

    def extend_summary(self, session: Session, summary: dict[str, Any]) -> None:
        summary.update({name: int(value) for name, value in self._figures(session).items()})

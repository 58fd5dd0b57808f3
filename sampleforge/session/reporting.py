"""When a report is due."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sampleforge.session.session import Session


class Reports:
    """Says when a report is due: at every interval, and when an evaluation waits to be reported.

    The interval is of seconds, or ``by_env_steps`` of 1000 env steps for each, to be deterministic.
    """

    def __init__(self, session: Session, *, by_env_steps: bool) -> None:
        self._progress = session.graph.progress
        self._evaluations = session.statistics.evaluations
        self._by_env_steps = by_env_steps
        self._interval = session.config.report_interval * (1000.0 if by_env_steps else 1.0)
        self._next = self._clock() + self._interval

    @property
    def is_due(self) -> bool:
        """Whether to report now. Counts the interval anew where it has passed."""
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + self._interval
        return due or self._evaluations.waits

    def _clock(self) -> float:
        return float(self._progress.env_steps) if self._by_env_steps else monotonic()

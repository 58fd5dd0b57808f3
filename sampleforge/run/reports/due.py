"""When reports are due: often at the beginning of a run, in equal intervals afterwards."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sampleforge.shared.counters import Progress

FIRST = 0.25
"""Seconds (or thousands of env steps) of training after which the first report is due."""
GROWTH = 0.2
"""Part of the training so far that lies between two reports at the beginning."""


class ReportTimes:
    """Says when a report is due: `GROWTH` times the training so far after the one before it, at
    least `FIRST` and at most ``interval``, which also holds before `FIRST`, while the environments
    start. With an interval of 5 there are 17 reports in the first 20 seconds.

    All are seconds, or thousands of env steps where reports are to be deterministic
    (``by_env_steps``)."""

    def __init__(self, progress: Progress, interval: float, *, by_env_steps: bool) -> None:
        self._progress = progress
        self._interval = interval
        self._by_env_steps = by_env_steps
        self._last = self._now()

    def is_due(self) -> bool:
        """Return whether a report is due; the next one is due later."""
        now = self._now()
        if now < self._last + self._gap():
            return False
        self._last = now
        return True

    def _now(self) -> float:
        return self._progress.env_steps / 1000.0 if self._by_env_steps else monotonic()

    def _gap(self) -> float:
        progress = self._progress
        so_far = progress.env_steps / 1000.0 if self._by_env_steps else progress.wall_s
        if so_far < FIRST:
            return self._interval
        return min(self._interval, max(FIRST, GROWTH * so_far))

"""What the workers of a session send: statistics of episodes, custom metrics, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sampleforge.run.callback import Level
from sampleforge.run.reports.statistics import RunStatistics
from sampleforge.shared.events import Event


class WorkerEvents:
    """Takes the events of workers; numbers go to the ``statistics`` of the run."""

    def __init__(self, statistics: RunStatistics) -> None:
        self._statistics = statistics
        self._told: set[str] = set()

    def take(self, events: Iterable[Event], message: Callable[[str, Level, str], None]) -> None:
        """Take events; texts go to ``message(text, level, source)``, a warning that several workers
        have once."""
        for event in events:
            if event.kind == "episode_stats":
                self._statistics.take_episode_stats(event.payload)
                continue
            if event.kind == "custom_metrics":
                self._statistics.take_custom_metrics(*event.payload)
                continue
            level, text = event.payload
            if level == "warning":
                if text in self._told:
                    level = "debug"
                self._told.add(text)
            message(text, "warning" if level == "critical" else level, event.source)

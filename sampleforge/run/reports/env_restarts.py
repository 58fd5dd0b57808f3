"""The report of environments that raise an error and are rebuilt: the first error is shown, and
too many errors end the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sampleforge.shared.counters import Counters

WINDOW = 1000
"""Number of latest episodes, finished or lost, that the limit applies to. So an environment that
breaks late in a long run is noticed as soon as one that is broken from the start, and a single
fault that loses an episode in every row does not end the run."""
LEAST = 20
"""Number of lost episodes from which on the limit applies: fewer say nothing about a rate."""


class EnvironmentFails(RuntimeError):
    """The environment raised errors too often; the message ends with the first traceback."""


class EnvRestarts:
    """Watches the counters env_restarts and episodes. ``limit``: the fraction of the episodes that
    may be lost; 1: all."""

    def __init__(self, counters: Counters, limit: float) -> None:
        self._counters = counters
        self._limit = limit
        self._reported = False
        self._history: deque[tuple[int, int]] = deque([(0, 0)])
        """(lost, finished) episodes at earlier checks, oldest first; the first entry is at least
        `WINDOW` episodes back, once there were so many."""

    def look(self, warn: Callable[[str], None]) -> None:
        """Call ``warn`` with the first error. Raises EnvironmentFails if too many of the latest
        episodes were lost."""
        now = self._total("env_restarts"), self._total("episodes")
        if now == self._history[-1]:
            return
        self._history.append(now)
        while len(self._history) > 1 and sum(now) - sum(self._history[1]) >= WINDOW:
            self._history.popleft()
        if now[0] and not self._reported:
            self._reported = True
            warn(
                "an environment raised an error; it was rebuilt, and its episode is dropped. The "
                f"first traceback:\n\n{self._first_fault()}\n\nCorrect the environment. Further "
                f"errors are only counted (env_restarts){self._limit_text()}"
            )
        lost, finished = (now[i] - self._history[0][i] for i in (0, 1))
        if lost >= LEAST and lost > self._limit * (lost + finished):
            raise EnvironmentFails(
                f"the environment raised an error in {lost:,} of the last {lost + finished:,} "
                f"episodes, more than --max-env-restart-rate {self._limit:g} allows: these "
                "episodes are dropped, and learning from the other episodes may be biased. "
                "Correct the environment, or raise the limit (1: no limit). The first "
                "traceback:\n\n"
                f"{self._first_fault()}"
            )

    def _limit_text(self) -> str:
        if self._limit >= 1:
            return ""
        return (
            f"; the run ends if more than {self._limit:.0%} of the episodes are lost "
            "(--max-env-restart-rate)"
        )

    def _first_fault(self) -> str:
        text = self._counters.first_fault.get()
        return text or "(it is in the output of another host's rank)"

    def _total(self, name: str) -> int:
        return int(self._counters.total(name))

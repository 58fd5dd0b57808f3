"""Environments that raise and are rebuilt: the first error is shown, too many end the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sampleforge.shared.counters import Counters

WINDOW = 1000
"""Episodes, finished or lost, among which the lost ones are counted: an environment that breaks
late in a long run is noticed as soon as one that is broken from the beginning, and rows that are
all lost once by the same cause do not end it."""
LEAST = 20
"""Fewer rebuilds say nothing about a rate."""


class EnvironmentFails(RuntimeError):
    """The environment raised too often; the text ends with the first traceback."""


class EnvRestarts:
    """Watches ``counters`` (their env_restarts and episodes). ``limit``: the part of the episodes
    that may be lost, 1 for all."""

    def __init__(self, counters: Counters, limit: float) -> None:
        self._counters = counters
        self._limit = limit
        self._said = False
        self._history: deque[tuple[int, int]] = deque([(0, 0)])
        """(lost, finished) episodes at earlier looks, at least `WINDOW` back, if there are any."""

    def look(self, say: Callable[[str], None]) -> None:
        """Tell ``say`` of the first error. Raises EnvironmentFails if too many of the latest
        episodes were lost."""
        now = self._total("env_restarts"), self._total("episodes")
        if now == self._history[-1]:
            return
        self._history.append(now)
        while len(self._history) > 1 and sum(now) - sum(self._history[1]) >= WINDOW:
            self._history.popleft()
        if now[0] and not self._said:
            self._said = True
            say(
                "an environment raised an error; it was rebuilt, and its episode is dropped. The "
                f"first traceback:\n\n{self._first_fault()}\n\nfurther ones are only counted "
                f"(env_restarts){self._what_follows()}"
            )
        lost, finished = (now[i] - self._history[0][i] for i in (0, 1))
        if lost >= LEAST and lost > self._limit * (lost + finished):
            raise EnvironmentFails(
                f"the environment raised an error in {lost:,} of the last {lost + finished:,} "
                f"episodes, more than --max-env-restart-rate {self._limit:g} allows: they are "
                "dropped, and what is learned from the others may be biased. Correct the "
                "environment, or raise the limit (1: none). The first traceback:\n\n"
                f"{self._first_fault()}"
            )

    def _what_follows(self) -> str:
        if self._limit >= 1:
            return ""
        return f"; above {self._limit:.3g} of the episodes the run ends (--max-env-restart-rate)"

    def _first_fault(self) -> str:
        text = self._counters.first_fault.get()
        return text or "(it is in the output of another host's rank)"

    def _total(self, name: str) -> int:
        return int(self._counters.total(name))

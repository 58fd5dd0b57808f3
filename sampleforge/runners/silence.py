"""What the driver says of workers that stand still: processes that were stopped, and workers that
do not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from sampleforge.runtime.processes import continue_process, is_stopped

TELL_AFTER_S = 10.0
"""Seconds after which the user is told that a worker stands still."""
LATE_S, LATE_SAVE_S = 30.0, 120.0
"""Seconds after the end of the training in which a worker must answer, and in which it must have
written a checkpoint."""
START_S = 3600.0
"""Seconds that a learner may take to start, in which it may read data."""
LOOK_S = 0.5
"""Seconds between two looks for stopped processes."""


class StoppedWorkers:
    """Finds workers whose process was stopped (by SIGSTOP, or a debugger), for which others may
    wait, and tells ``alert`` of each after `TELL_AFTER_S` s. Once ``is_over()`` is true, no limit
    of the run is to be missed because of them: they are continued.

    ``age`` returns the seconds since a time of ``monotonic``, see `ProcessRunner`."""

    def __init__(
        self,
        alert: Callable[[str], None],
        age: Callable[[float], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._alert = alert
        self._age = age
        self._is_over = is_over
        self._next_look = 0.0
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, pids: Mapping[str, int]) -> None:
        """Look at the workers with these process ids, at most every `LOOK_S` seconds."""
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        stopped = {name: pid for name, pid in pids.items() if is_stopped(pid)}
        self._since = {name: self._since.get(name, now) for name in stopped}
        self._told &= set(stopped)
        for name, pid in stopped.items():
            if self._is_over():
                continue_process(pid)
                self._alert(f"{name} was stopped; it is continued, because the training is over")
            elif name not in self._told and self._age(self._since[name]) >= TELL_AFTER_S:
                self._told.add(name)
                self._alert(
                    f"{name} has been stopped for {TELL_AFTER_S:g} s (by SIGSTOP or a debugger), "
                    f"and what needs it waits: `kill -CONT {pid}` continues it. It is replaced "
                    "when its time limit has passed, and continued when the training is over"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._since

    def __bool__(self) -> bool:
        return bool(self._since)


class Unanswered:
    """Follows the requests to workers: tells ``alert`` of a worker that has not answered for
    `TELL_AFTER_S` s, and again whenever it takes twice as long as what was told last, because long
    updates are told of a few times in a run; and says when an answer comes too late.

    ``age`` as for `StoppedWorkers`; ``is_over()``: the training is over."""

    def __init__(
        self,
        alert: Callable[[str], None],
        age: Callable[[float], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._alert = alert
        self._age = age
        self._is_over = is_over
        self._over_since: float | None = None
        self._told: dict[str, float] = {}
        self._longest: dict[str, float] = {}

    def look(self, name: str, waited: float, timeout: float, *, starts: bool = False) -> None:
        """Look at a request to worker ``name`` that has waited for so many seconds, of
        ``timeout``. ``starts``: the worker has not started yet."""
        limit = self._told.get(name, TELL_AFTER_S)
        if waited >= limit:
            self._told[name] = 2 * limit
            if starts:
                self._alert(
                    f"{name} has been starting for {waited:.0f} s: it reads its data, compiles, or "
                    f"hangs (it is replaced after {timeout:g} s)"
                )
                return
            self._alert(
                f"{name} has not answered for {waited:.0f} s: it is busy with one update, or hangs "
                f"(it is replaced after {timeout:g} s, or soon after the training is over)"
            )

    def answered(self, name: str, asked: float) -> None:
        """Keep how long worker ``name`` has taken for a request of that time of ``monotonic``."""
        self._longest[name] = max(self._age(asked), self._longest.get(name, 0.0))

    def is_late(self, name: str, kind: str, asked: float) -> bool:
        """Return whether worker ``name`` keeps the end of the training waiting: it has not answered
        a request for much longer than it is known to take."""
        if not self._is_over():
            return False
        if self._over_since is None:
            self._over_since = monotonic()
        limit = LATE_SAVE_S if kind == "save" else LATE_S
        since = max(asked, self._over_since)
        return self._age(since) > max(limit, 2 * self._longest.get(name, 0.0))

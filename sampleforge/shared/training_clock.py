"""Seconds of training, which all workers of a run read and its driver counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from sampleforge.runtime.watch import seconds_since
from sampleforge.shared.arrays import SharedArrays

TICK = 0.1
"""Seconds between two looks at the clock."""
PAUSE_S = 1.0
"""Seconds without a look after which the process counts as paused, and not as busy."""


class TrainingClock:
    """Seconds of training in shared memory, float64: 0 until the driver's `ClockTicker` counts
    them. Time in which the run was paused is left out. ``ended``: the driver has ended the training
    before a limit was reached (`end`). ``settled``: the learners have published their last weights
    (`settle`)."""

    def __init__(self) -> None:
        flags = {name: ((1,), "bool") for name in ("ended", "settled")}
        self._arrays = SharedArrays({"seconds": ((1,), "float64"), **flags})

    @property
    def seconds(self) -> float:
        return float(self._arrays["seconds"][0])

    @property
    def ended(self) -> bool:
        return bool(self._arrays["ended"][0])

    def end(self) -> None:
        """Tell all workers that the training ends."""
        self._arrays["ended"][0] = True

    @property
    def settled(self) -> bool:
        return bool(self._arrays["settled"][0])

    def settle(self) -> None:
        """Tell all workers that the published weights are the last ones: no more env steps are
        taken."""
        self._arrays["settled"][0] = True

    def advance(self, seconds: float) -> None:
        """Count ``seconds`` more. One process at a time does so."""
        self._arrays["seconds"][0] += seconds


class ClockTicker:
    """Counts the seconds of a `TrainingClock` from the moment when ``has_begun()`` is true until it
    is ended, and finds the pauses of this process: Ctrl-Z, SIGSTOP, a virtual machine that is held.

    A thread of its own looks every `TICK` seconds, so that a busy process is not taken for a paused
    one. Time in which the computer sleeps is no time for ``monotonic`` at all.
    """

    def __init__(self, clock: TrainingClock, has_begun: Callable[[], bool]) -> None:
        self._clock = clock
        self._has_begun = has_begun
        self._begun = False
        self._lock = threading.Lock()
        self._last = monotonic()
        self._pauses: list[tuple[float, float]] = []
        """When each pause ended, and how many seconds it had lasted."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training clock", daemon=True)

    def start(self) -> None:
        """Begin to look at the clock."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; the clock stands still from now on."""
        self.look()
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def age(self, at: float) -> float:
        """Return the seconds since ``at`` (of ``monotonic``), without the pauses since then."""
        self.look()
        return seconds_since(at) - sum(length for ended, length in self._pauses if ended > at)

    def _run(self) -> None:
        while not self._closed.wait(TICK):
            self.look()

    def look(self) -> None:
        """Count the seconds since the last look, which is up to `TICK` ago."""
        with self._lock:
            now = monotonic()
            passed, self._last = now - self._last, now
            if passed > PAUSE_S:
                self._pauses.append((now, passed - TICK))
                passed = TICK
            self._begun = self._begun or self._has_begun()
            if self._begun and not self._closed.is_set() and not self._clock.ended:
                self._clock.advance(passed)

"""A thread that ends this process if a step hangs, or if the parent process has died."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

INTERVAL = 1.0
"""Seconds between two checks."""


def seconds_since(at: float) -> float:
    """Return the seconds since ``at``, a time of ``monotonic``, which is common to all processes of
    a machine."""
    return monotonic() - at


class Watch:
    """Watches the code that runs `inside` it: the time of ``monotonic`` that ``beat`` returns must
    not be more than ``limit`` seconds ago. ``age`` returns the seconds since such a time, without
    those in which this process was paused. `start` begins the watch and `close` ends it.

    If a simulator hangs in C and holds the interpreter's lock, this thread stops as well; then only
    the other ranks notice.
    """

    def __init__(
        self,
        name: str,
        limit: float,
        beat: Callable[[], float],
        age: Callable[[float], float] = seconds_since,
    ) -> None:
        self._name = name
        self._limit = limit
        self._beat = beat
        self._age = age
        self._entered = inf
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def start(self) -> None:
        self._parent = os.getppid()
        self._thread.start()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Return a context whose body is watched."""
        self._entered = monotonic()
        try:
            yield
        finally:
            self._entered = inf

    def look(self) -> None:
        """Check now, from inside the watched code. If environments step in threads, this code
        continues while one of them hangs; then the beat is that of the oldest step."""
        self._judge(self._age(self._beat()))

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(min(INTERVAL, self._limit)):
            if os.getppid() != self._parent:
                self._end("its parent process (torchrun) has died")
            self._judge(self._age(max(self._beat(), self._entered)))

    def _judge(self, age: float) -> None:
        if age > self._limit:
            faulthandler.dump_traceback(all_threads=True)
            self._end(
                f"has been in one step for {age:.0f} s (--env-timeout {self._limit:g}); its stacks "
                "are above. Does the environment hang?"
            )

    def _end(self, why: str) -> None:
        print(f"{self._name}: {why}", file=sys.stderr, flush=True)
        os._exit(1)

"""A thread that ends this process when it hangs, or when whoever started it has died."""

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
"""Seconds between two looks."""


def seconds_since(at: float) -> float:
    """Return the seconds since ``at``, a time of ``monotonic``, which is common to all processes of
    a machine."""
    return monotonic() - at


class Watch:
    """Watches what runs `inside` it: ``beat`` (a time of ``monotonic``) must not be older than
    ``limit`` seconds there. ``age`` returns the seconds since such a time, without those in which
    this process was paused. Begins with `start`; `close` ends it.

    A simulator that hangs in C with the interpreter's lock in its hand stops this thread too: then
    it is the other ranks that notice.
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
        self._entered = monotonic()
        try:
            yield
        finally:
            self._entered = inf

    def look(self) -> None:
        """Look now, from inside: where environments step in threads, what is watched goes on while
        one of them hangs, and the beat is that of the oldest step."""
        self._judge(self._age(self._beat()))

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(min(INTERVAL, self._limit)):
            if os.getppid() != self._parent:
                self._end("what has started it (torchrun) has died")
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

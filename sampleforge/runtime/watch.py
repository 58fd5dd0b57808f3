"""A thread that ends this process if a step hangs, or if the parent process has died."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import time

INTERVAL = 1.0
"""Seconds between two checks."""


class Watch:
    """Watches the code that runs `inside` it: the time that ``beat`` returns (seconds since the
    epoch) must not be more than ``limit`` seconds ago. `start` begins the watch and `close` ends
    it.

    If a simulator hangs in C and holds the interpreter's lock, this thread stops as well; then only
    the other ranks notice.
    """

    def __init__(self, name: str, limit: float, beat: Callable[[], float]) -> None:
        self._name = name
        self._limit = limit
        self._beat = beat
        self._entered = inf
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def start(self) -> None:
        self._parent = os.getppid()
        self._thread.start()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Return a context whose body is watched."""
        self._entered = time()
        try:
            yield
        finally:
            self._entered = inf

    def look(self) -> None:
        """Check now, from inside the watched code. If environments step in threads, this code
        continues while one of them hangs; then the beat is that of the oldest step."""
        self._judge(time() - self._beat())

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(min(INTERVAL, self._limit)):
            if os.getppid() != self._parent:
                self._end("its parent process (torchrun) has died")
            self._judge(time() - max(self._beat(), self._entered))

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

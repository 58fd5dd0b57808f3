"""A thread that ends this process when it hangs, or when whoever started it has died."""

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
"""Seconds between two looks."""


class Watch:
    """Watches what runs `inside` it: ``beat`` (seconds since the epoch) must not be older than
    ``limit`` seconds there. Begins with `start`; `close` ends it.

    A simulator that hangs in C with the interpreter's lock in its hand stops this thread too: then
    it is the other ranks that notice.
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
        self._entered = time()
        try:
            yield
        finally:
            self._entered = inf

    def look(self) -> None:
        """Look now, from inside: where environments step in threads, what is watched goes on while
        one of them hangs, and the beat is that of the oldest step."""
        self._judge(time() - self._beat())

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(min(INTERVAL, self._limit)):
            if os.getppid() != self._parent:
                self._end("what has started it (torchrun) has died")
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

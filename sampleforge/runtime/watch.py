"""Threads that end this process if a step hangs, or if the parent process has died."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from types import FrameType

from sampleforge.runtime.processes import end_descendants

INTERVAL = 1.0
"""Seconds between two checks."""
STDERR = 2
"""Where stacks are dumped: ``sys.stderr`` may be an object without a file number."""
WITHOUT_LOCK_S = 5.0
"""Seconds after the limit of a `HangWatch` at which a process ends whose threads cannot run."""


def seconds_since(at: float) -> float:
    """Return the seconds since ``at``, a time of ``monotonic``, which is common to all processes of
    a machine."""
    return monotonic() - at


def hangs(name: str, age: float, limit: float, *, starting: bool) -> str:
    """Return what is said of a worker whose last sign of life is ``age`` seconds old. ``starting``:
    it makes and resets its environments."""
    doing = "making or resetting one environment" if starting else "in one step"
    return (
        f"{name} has been {doing} for {age:.0f} s (--env-timeout {limit:g}), so the "
        "environment may hang; its stacks are above"
    )


class Watch:
    """Watches the code that runs `inside` it: the time of ``monotonic`` that ``beat`` returns must
    not be more than ``limit`` seconds ago. ``starting()``: see `hangs`. ``age`` returns the seconds
    since such a time, without those in which this process was paused. `start` begins the watch and
    `close` ends it.

    If a simulator hangs in C and holds the interpreter's lock, this thread stops as well; then only
    the other ranks notice.
    """

    def __init__(
        self,
        name: str,
        limit: float,
        beat: Callable[[], float],
        starting: Callable[[], bool],
        age: Callable[[float], float] = seconds_since,
    ) -> None:
        self._name = name
        self._limit = limit
        self._beat = beat
        self._starting = starting
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
            faulthandler.dump_traceback(STDERR, all_threads=True)
            self._end(hangs("", age, self._limit, starting=self._starting()).strip())

    def _end(self, why: str) -> None:
        print(f"{self._name}: {why}", file=sys.stderr, flush=True)
        os._exit(1)


class HangWatch:
    """Ends this process, and those that it has started, when more than ``limit`` seconds pass
    between two calls of `alive` inside of the context. It begins with the first call. Seconds for
    which Ctrl-Z (SIGTSTP) has stopped the process do not count."""

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._alive_at = inf
        self._looking = threading.RLock()  # a second SIGTSTP may come within the handler
        self._knows_pauses = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hang watch", daemon=True)

    def alive(self) -> None:
        self._alive_at = monotonic()

    def __enter__(self) -> HangWatch:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._pause)
            self._knows_pauses = True
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        if self._knows_pauses:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        with self._looking:
            faulthandler.cancel_dump_traceback_later()
            began = monotonic()
            os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
            self._alive_at += monotonic() - began

    def _look(self) -> None:
        pause = min(INTERVAL, self._limit / 4)
        later = self._limit + WITHOUT_LOCK_S
        while not self._closed.wait(pause):
            with self._looking:
                # For a simulator that keeps the interpreter's lock, and with it this thread.
                faulthandler.dump_traceback_later(later, exit=True, file=STDERR)
                if monotonic() - self._alive_at > self._limit:
                    self._end()
        faulthandler.cancel_dump_traceback_later()

    def _end(self) -> None:
        faulthandler.dump_traceback(STDERR, all_threads=True)
        end_descendants()
        print(
            f"{self._name}: the environment hangs: its construction, a reset or a step took more "
            f"than {self._limit:g} s (the stacks are above); --env-timeout sets the limit",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

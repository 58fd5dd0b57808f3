"""Wake-ups between processes: one process waits, and any other one ends the wait."""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Iterable
from multiprocessing import reduction
from typing import Any

_ONE = (1).to_bytes(8, "little")


class Wakeup:
    """A flag that ends a wait. It stays set until the next wait, so a wake-up before the wait is
    not lost.

    It is an eventfd on Linux (measured: 0.9 us of CPU per message, 50 us round trip) and a pipe
    elsewhere. It carries no data and orders nothing: the woken process reads from shared memory
    what has happened. A process that is killed inside any call leaves it usable. It can be pickled
    to child processes. Its descriptors are closed when the object is garbage-collected, because a
    script may train many times.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._reader = self._writer = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)
            os.set_blocking(self._writer, False)
        self._begin()

    def _begin(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._close = weakref.finalize(self, _close, {self._reader, self._writer})

    def set(self) -> None:
        """End the current wait, or the next one."""
        # BlockingIOError: full of unread wake-ups, so the next wait ends at once anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, _ONE)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds. Return whether the flag was set, and clear it."""
        if not self._poll.poll(max(0.0, timeout) * 1000):
            return False
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptors now; the object must not be used afterwards."""
        self._close()

    def __getstate__(self) -> tuple[Any, Any]:
        return reduction.DupFd(self._reader), reduction.DupFd(self._writer)

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self._reader, self._writer = (fd.detach() for fd in state)
        self._begin()


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)

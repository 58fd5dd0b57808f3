"""Wake-ups between processes: one process waits, and any other one ends the wait."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import sys
import weakref
from multiprocessing import reduction
from time import perf_counter
from typing import Any

import numpy as np

from sampleforge.shared.arrays import SharedArrays

FUTEX_WAIT = 0
FUTEX_WAKE_OP = 5
FUTEX_ADD_ONE = 1 << 28 | 1 << 12
"""Of linux/futex.h: add 1 to the word, atomically; never wake the waiters of a second word."""
EVERYBODY = 0x7FFFFFFF
SYS_FUTEX = {"x86_64": 202, "i386": 240, "i686": 240, "armv7l": 240}
"""The number of the system call, where it is not 98."""
LINE = 16
"""Words of 4 bytes in a cache line: each wake-up has one of its own."""


class FutexWakeup:
    """A flag that ends a wait. It stays set until the next wait, so a wake-up before the wait is
    not lost.

    It is a counter in shared memory, which `set` raises, and a futex on it: wake-ups that share
    their memory (`wakeups`) take no file descriptor each, however many workers there are. It
    carries no data: the woken process reads from shared memory what has happened. The kernel raises
    the counter atomically and as a full barrier, so no wake-up is lost among several setters. A
    process that is killed inside any call leaves it usable. One process waits. It can be pickled to
    child processes.
    """

    def __init__(self, memory: SharedArrays | None = None, index: int = 0) -> None:
        self._memory = memory if memory is not None else _memory(1)
        self._index = index
        self._begin()

    def _begin(self) -> None:
        self._word = self._memory["words"][self._index]
        self._seen = int(self._word[0])
        address = ctypes.c_void_p(self._word.ctypes.data)
        number = ctypes.c_long(SYS_FUTEX.get(platform.machine(), 98))
        zero, self._time = ctypes.c_void_p(0), _TimeSpec()
        self._expected = ctypes.c_uint32(self._seen)
        self._futex = ctypes.CDLL(None).syscall
        # Converted once: a call takes half the time.
        self._set_args = (
            number,
            address,
            ctypes.c_int(FUTEX_WAKE_OP),
            ctypes.c_uint32(EVERYBODY),
            zero,
            address,
            ctypes.c_uint32(FUTEX_ADD_ONE),
        )
        self._wait_args = (
            number,
            address,
            ctypes.c_int(FUTEX_WAIT),
            self._expected,
            ctypes.byref(self._time),
            zero,
            ctypes.c_uint32(0),
        )

    def set(self) -> None:
        """End the current wait, or the next one."""
        self._futex(*self._set_args)

    def wait(self, timeout: float, spin: float = 0.0) -> bool:
        """Wait up to ``timeout`` seconds, the first ``spin`` of them in a loop, out of which the
        kernel need not wake this process. Return whether the flag was set, and clear it."""
        if spin:
            self._spin(perf_counter() + spin)
        if self._word[0] == self._seen and timeout > 0:
            self._expected.value = self._seen
            self._time.seconds = int(timeout)
            self._time.nanoseconds = int(timeout % 1 * 1e9)
            self._futex(*self._wait_args)  # returns at once if the counter was raised meanwhile
        count = int(self._word[0])
        is_set, self._seen = count != self._seen, count
        return is_set

    def _spin(self, end: float) -> None:
        word, seen = self._word, self._seen
        while word[0] == seen and perf_counter() < end:
            pass

    def __getstate__(self) -> tuple[SharedArrays, int, int]:
        return self._memory, self._index, self._seen

    def __setstate__(self, state: tuple[SharedArrays, int, int]) -> None:
        self._memory, self._index, seen = state
        self._begin()
        self._seen = seen  # a wake-up on the way to the child process is not lost


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))
    seconds: int
    nanoseconds: int


class PipeWakeup:
    """As `FutexWakeup`, where there is no futex: a pipe, which takes two file descriptors. They are
    closed when the object is garbage-collected, because a script may train many times."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._begin()

    def _begin(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._close = weakref.finalize(self, _close, self._reader, self._writer)

    def set(self) -> None:
        """End the current wait, or the next one."""
        # BlockingIOError: full of unread wake-ups, so the next wait ends at once anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"1")

    def wait(self, timeout: float, spin: float = 0.0) -> bool:
        """Wait up to ``timeout`` seconds. Return whether the flag was set, and clear it."""
        if not self._poll.poll(max(0.0, timeout) * 1000):
            return False
        was_set = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                was_set = True
        return was_set

    def __getstate__(self) -> tuple[Any, Any]:
        return reduction.DupFd(self._reader), reduction.DupFd(self._writer)

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self._reader, self._writer = (fd.detach() for fd in state)
        self._begin()


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


if sys.platform == "linux":
    Wakeup = FutexWakeup
else:
    Wakeup = PipeWakeup


def wakeups(count: int) -> list[Wakeup]:
    """Return ``count`` wake-ups, which a worker gets through one file descriptor on Linux."""
    if sys.platform == "linux":
        memory = _memory(count)
        return [Wakeup(memory, index) for index in range(count)]
    return [Wakeup() for _ in range(count)]


def _memory(count: int) -> SharedArrays:
    return SharedArrays({"words": ((max(1, count), LINE), np.dtype(np.uint32).name)})

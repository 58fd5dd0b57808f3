"""The handling of Ctrl-C, SIGTERM and SIGHUP (the first ends a run in order, the second at once)
and of Ctrl-Z, by the command line; of Ctrl-C, in the library."""

from __future__ import annotations

import math
import os
import signal
import stat
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

from sampleforge.runtime.processes import remove_socket_folder

ONE_SIGNAL_S = {signal.SIGINT: 0.3, signal.SIGTERM: 1.0, signal.SIGHUP: math.inf}
"""Seconds within which a second signal counts as a copy of the first: `timeout` signals its child
and then the child's group, `uv run` and torchrun pass on signals that the group has received
already, and a closing terminal sends SIGHUP twice."""

AT_ONCE_S = 1.5
"""Seconds that ``at_once`` may take."""


class Interrupts:
    """A context that handles SIGINT, SIGTERM and SIGHUP.

    The first signal is stored in ``received`` (its number) and calls ``in_order``. A second one
    calls ``at_once`` and ends the process with 128 + its number, unless it is a copy of the first
    (`ONE_SIGNAL_S`).

    Before `defer` is called there is nothing to bring in order: then the first signal also raises
    KeyboardInterrupt, or SystemExit(128 + number). SIGHUP stays ignored if it was before (nohup).

    Ctrl-Z (SIGTSTP) stops this process, and before it, by ``signal_workers(SIGSTOP)``, its workers,
    which are in other process groups; they continue with it.
    """

    def __init__(
        self,
        at_once: Callable[[], None],
        in_order: Callable[[], None] = lambda: None,
        signal_workers: Callable[[int], None] | None = None,
    ) -> None:
        self.received: int | None = None
        self._in_order = in_order
        self._at_once = at_once
        self._signal_workers = signal_workers
        self._deferred = False
        self._received_at = -math.inf

    def defer(self) -> None:
        """From now on do not raise an exception: the caller ends by itself after ``in_order``."""
        self._deferred = True

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        if self._signal_workers and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 0 without a
        signal."""
        return 0 if self.received is None else 128 + self.received

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        assert self._signal_workers is not None
        self._signal_workers(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
        self._signal_workers(signal.SIGCONT)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_the_terminal()
        if self.received is not None:
            if monotonic() - self._received_at < ONE_SIGNAL_S[signal.Signals(number)]:
                return
            end = threading.Timer(AT_ONCE_S, os._exit, (128 + number,))
            end.daemon = True
            end.start()
            self._at_once()
            remove_socket_folder()
            os._exit(128 + number)
        self.received, self._received_at = number, monotonic()
        self._in_order()
        if not self._deferred:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(self.exit_code)


class DeferredInterrupt:
    """A context that keeps a Ctrl-C until `check` is called, or until the context is left; then
    KeyboardInterrupt is raised. So it cannot leave half done what is done inside. A second Ctrl-C
    raises KeyboardInterrupt at once.

    It replaces Python's own handler only: it changes nothing outside of the main thread, within
    another such context, or in a program with a handler of its own.
    """

    def __init__(self) -> None:
        self._received_at: float | None = None
        self._installed = False

    def __enter__(self) -> DeferredInterrupt:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C."""
        if self._received_at is not None:
            self._received_at = None
            raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None:
            self.check()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        now = monotonic()
        if self._received_at is None:
            self._received_at = now
        elif now - self._received_at >= ONE_SIGNAL_S[signal.SIGINT]:
            self.check()


def _leave_the_terminal() -> None:
    """Redirect stdout and stderr to /dev/null if they are a terminal: writing to a closed terminal
    is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)

"""Ctrl-C, SIGTERM and SIGHUP: once to end in order, twice to end at once."""

from __future__ import annotations

import math
import os
import signal
import stat
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType

ONE_SIGNAL_S = {signal.SIGINT: 0.3, signal.SIGTERM: 1.0, signal.SIGHUP: math.inf}
"""Seconds within which the same request comes twice: `timeout` signals its child and then the
child's group, `uv run` and torchrun pass on what the group has got already, and a terminal that
goes away hangs up once for its shell and once for itself."""

AT_ONCE_S = 1.5
"""Seconds that ``at_once`` may take."""


class Interrupts:
    """While active, the first SIGINT, SIGTERM or SIGHUP is remembered in ``received`` (the signal's
    number) and calls ``in_order``; another one calls ``at_once`` and ends the process with 128 +
    that number, unless it comes so soon that it belongs to the first (`ONE_SIGNAL_S`).

    Until `defer` is called there is nothing to bring in order, and the first one leaves at once
    too, but by an exception: KeyboardInterrupt, or SystemExit(128 + number). SIGHUP stays ignored
    where it is (nohup).
    """

    def __init__(
        self, at_once: Callable[[], None], in_order: Callable[[], None] = lambda: None
    ) -> None:
        self.received: int | None = None
        self._in_order = in_order
        self._at_once = at_once
        self._deferred = False
        self._received_at = -math.inf

    def defer(self) -> None:
        """From now on ``in_order`` is enough: the caller ends by itself."""
        self._deferred = True

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, 0 for none."""
        return 0 if self.received is None else 128 + self.received

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
            os._exit(128 + number)
        self.received, self._received_at = number, monotonic()
        self._in_order()
        if not self._deferred:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(self.exit_code)


def _leave_the_terminal() -> None:
    """Write nowhere instead of to a terminal that has gone: that would be an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)

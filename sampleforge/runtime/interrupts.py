"""Ctrl-C and SIGTERM: once to end in order, twice to end at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """While active, the first SIGINT or SIGTERM is remembered in ``received`` (the signal's
    number); a second one calls ``at_once`` and ends the process with 128 + that number.

    Until `defer` is called there is nothing to bring in order, and the first one leaves at once
    too, but by an exception: KeyboardInterrupt, or SystemExit(143).
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.received: int | None = None
        self._at_once = at_once
        self._deferred = False

    def defer(self) -> None:
        """From now on the caller looks at ``received`` from time to time."""
        self._deferred = True

    def __enter__(self) -> Interrupts:
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 0 for neither."""
        return 0 if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._at_once()
            os._exit(128 + number)
        self.received = number
        if not self._deferred:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(self.exit_code)

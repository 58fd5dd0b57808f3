"""The end of environments in the user's own process, which a ``close`` that hangs must not hold."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from sampleforge.env.env_code import as_error
from sampleforge.env.vector import EnvVector

CLOSE_S = 10.0
"""Seconds that an environment may take to close."""


def close_in_time(envs: EnvVector, warn: Callable[[str], object], seconds: float = CLOSE_S) -> None:
    """Close env rows that are needed no more. What ``close`` raises, and a ``close`` that takes
    more than so many ``seconds``, is only told to ``warn``: what the rows were for is done, or
    another error is why not."""
    try:
        with in_time(seconds):
            envs.close()
    except BaseException as error:
        warn(f"closing the environments failed: {as_error(error)!r}")


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body whenever it has taken so many ``seconds`` more, also in a call
    that waits. The body stays in the caller's thread, since an environment may have to be closed by
    the thread that has made it (windows, database connections). A signal does this, which Python
    handles in the main thread alone: in another one there is no limit. An alarm that is set already
    rings afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(
            f"the environments have not closed within {seconds:g} s: their close() hangs. What "
            "they hold is released when the program ends; processes that they have started may "
            "have to be ended by hand"
        )

    began, handler = monotonic(), signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - began), 1e-3), interval)

"""Events: messages of any size from workers to the session.

Log lines, warnings and statistics that an environment reports are sent as events. Trajectories,
episodes and requests are not: they have rings in shared memory. A worker calls `send`; the runner
sets the destination once per process.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from queue import Full
from typing import Any, Literal, NamedTuple

import faster_fifo

Kind = Literal["log", "episode_stats"]
QUEUE_BYTES = 1 << 18
MAX_TEXT = 16 << 10
"""Longest log line in characters. Of a longer one the end is kept, because the cause stands
there."""


class Event(NamedTuple):
    """An event. ``source``: the worker's name. ``payload``: (level, text) of a log line, or
    (number, {name: value}) of what environment and callbacks report of an episode, where the record
    of the episode has the number."""

    source: str
    kind: Kind
    payload: Any


class EventList:
    """A queue of events within one process."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def extend(self, events: Iterable[Event]) -> None:
        self._events += events

    def take(self) -> list[Event]:
        """Remove and return all events."""
        events, self._events = self._events, []
        return events


class EventSender:
    """A worker's end of its event queue, one per life. It can be pickled to the worker's
    process."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.queue = faster_fifo.Queue(QUEUE_BYTES)
        self._lost = 0

    def __call__(self, kind: Kind, payload: Any) -> None:
        """Send without waiting; if the queue is full, the event is lost. The number of lost ones is
        sent as a warning once there is room."""
        if self._lost:
            text = f"{self._lost:,} log lines or statistics were lost: the event queue was full"
            if not self._put("log", ("warning", text)):
                self._lost += 1
                return
            self._lost = 0
        if not self._put(kind, payload):
            self._lost += 1

    def _put(self, kind: Kind, payload: Any) -> bool:
        """Put an event into the queue; return False if there is no room for it."""
        try:
            self.queue.put(Event(self.source, kind, payload), block=False)
        except Full:
            return False
        return True


Send = Callable[[Kind, Any], None]


def _ignore(kind: Kind, payload: Any) -> None:
    pass


_send: Send = _ignore
_of_thread = threading.local()
"""Its `send` is the destination of the events of a thread that has one of its own."""


def send(kind: Kind, payload: Any) -> None:
    """Send an event of the worker that this thread, or else this process, belongs to; it is dropped
    if no session listens."""
    getattr(_of_thread, "send", _send)(kind, payload)


def send_through_in_thread(sender: Send | None) -> Send | None:
    """Set the destination of this thread's events (None: that of the process); return the previous
    one. So sessions in several threads of one process get the events of their own workers."""
    before = sender_of_thread()
    if sender is not None:
        _of_thread.send = sender
    elif before is not None:
        del _of_thread.send
    return before


def sender_of_thread() -> Send | None:
    """Return the destination that this thread has of its own."""
    return getattr(_of_thread, "send", None)


def send_through(sender: Send | None) -> Send | None:
    """Set the destination of this process's events (None: they are dropped); return the previous
    one."""
    global _send
    before, _send = _send, sender or _ignore
    return None if before is _ignore else before


class PythonWarnings:
    """Sends Python's warnings as log lines, in the place of ``warnings.showwarning``: each text
    once, whatever numbers it has, so that a step with another number each time tells it once."""

    def __init__(self) -> None:
        self._told: set[tuple[type[Warning], str]] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        text = re.sub(r"\x1b\[[\d;]*m", "", str(message))
        key = category, re.sub(r"\d+", "", text)
        if key not in self._told:
            self._told.add(key)
            said = f"{category.__name__}: {text} ({filename}:{lineno})"
            send("log", ("warning", said[-MAX_TEXT:]))


class EventLogHandler(logging.Handler):
    """Sends log records as events."""

    def emit(self, record: logging.LogRecord) -> None:
        send("log", (record.levelname.lower(), self.format(record)[-MAX_TEXT:]))

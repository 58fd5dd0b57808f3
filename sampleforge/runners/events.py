"""The driver's end of all event queues: one thread reads them, whatever happens to a writer.

A faster-fifo queue has a plain mutex, which no time-out covers: a worker that is killed while it
holds the mutex leaves it locked for ever, and the next thread that takes it never returns. So each
life of a worker has a queue of its own, and only this thread reads them. When it sticks at one,
thread and queue are abandoned and counted, and a new thread reads the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from time import monotonic

from sampleforge.runtime.watch import seconds_since
from sampleforge.shared.events import Event, EventSender

LOOK = 0.05
"""Seconds between two rounds over all queues."""
STUCK_S = 2.0
"""Seconds at one queue after which its mutex counts as lost: reading takes microseconds."""
LAST_LOOK_S = 1.0


class EventReader:
    """Collects the events of all queues. ``abandoned`` names those whose mutex was lost. ``age``
    returns the seconds since a time, without those in which this process was paused."""

    def __init__(self, age: Callable[[float], float] = seconds_since) -> None:
        self._age = age
        self.abandoned: list[str] = []
        self._senders: list[EventSender] = []
        self._retired: set[int] = set()
        self._events: deque[Event] = deque()
        self._round: _Round | None = None

    def new_sender(self, source: str) -> EventSender:
        """Make the event queue of one life of a worker."""
        sender = EventSender(source)
        self._senders.append(sender)
        if self._round is None:
            self._round = self._new_round()
        return sender

    def retire(self, sender: EventSender) -> None:
        """The life has ended: its queue is read once more."""
        self._retired.add(id(sender))

    def take(self) -> list[Event]:
        """Return the events that have come since the last call."""
        self._leave_stuck_thread()
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        """Read everything that the workers left, and end the thread."""
        for sender in self._senders:
            self.retire(sender)
        deadline = monotonic() + LAST_LOOK_S + STUCK_S
        while self._senders and monotonic() < deadline:
            self._leave_stuck_thread()
            threading.Event().wait(LOOK / 5)
        if self._round is not None:
            self._round.end()
            self._round = None

    def _leave_stuck_thread(self) -> None:
        stuck = None if self._round is None else self._round.stuck_at()
        if stuck is None:
            return
        assert self._round is not None
        self._round.abandon()
        self._senders.remove(stuck)
        self.abandoned.append(stuck.source)
        self._round = self._new_round()

    def _new_round(self) -> _Round:
        return _Round(self._senders, self._retired, self._events, self._age)


class _Round:
    """One thread that reads all queues in turn."""

    def __init__(
        self,
        senders: list[EventSender],
        retired: set[int],
        events: deque[Event],
        age: Callable[[float], float],
    ) -> None:
        self._age = age
        self._senders = senders
        self._retired = retired
        self._events = events
        self._at: tuple[EventSender, float] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event reader", daemon=True)
        self._thread.start()

    def stuck_at(self) -> EventSender | None:
        """Return the queue that the thread does not come back from, or None."""
        at = self._at
        return at[0] if at is not None and self._age(at[1]) > STUCK_S else None

    def abandon(self) -> None:
        """Leave the thread where it is; it does nothing more, should it ever come back."""
        self._ended.set()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(STUCK_S)  # it may have stuck at a queue just now

    def _run(self) -> None:
        while not self._ended.is_set():
            for sender in list(self._senders):
                if self._ended.is_set():
                    return
                self._read(sender)
            self._ended.wait(LOOK)

    def _read(self, sender: EventSender) -> None:
        last = id(sender) in self._retired  # before the look: nothing comes after it
        self._at = sender, monotonic()
        try:
            events = sender.queue.get_many(block=False)
        except Empty:
            events = []
        self._at = None
        if self._ended.is_set():
            return
        self._events.extend(events)
        if last and not events:
            self._senders.remove(sender)
            self._retired.discard(id(sender))

"""The reader of all event queues, in a thread of the driver that survives killed writers.

A faster-fifo queue has a plain mutex without a time-out: a worker that is killed while it holds the
mutex leaves it locked for ever, and the next thread that takes it never returns. So each life of a
worker has a queue of its own, which only this thread reads. If the thread blocks at a queue, both
are abandoned, the queue is counted, and a new thread reads the other queues.
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
"""Seconds that reading a queue may take before its mutex counts as lost; it usually takes
microseconds."""
LAST_LOOK_S = 1.0
"""Seconds that `EventReader.close` takes at most to read the remaining events."""


class EventReader:
    """Collects the events of all queues. ``abandoned``: names of the workers whose queue was
    abandoned because its mutex was lost. ``age`` returns the seconds since a time, without those in
    which this process was paused."""

    def __init__(self, age: Callable[[float], float] = seconds_since) -> None:
        self._age = age
        self.abandoned: list[str] = []
        self._senders: list[EventSender] = []
        self._retired: set[int] = set()
        self._events: deque[Event] = deque()
        self._round: _Round | None = None

    def new_sender(self, source: str) -> EventSender:
        """Create the event queue of one life of a worker; return the worker's end."""
        sender = EventSender(source)
        self._senders.append(sender)
        if self._round is None:
            self._round = self._new_round()
        return sender

    def retire(self, sender: EventSender) -> None:
        """Read the queue of a life that has ended once more, then drop it."""
        self._retired.add(id(sender))

    def take(self) -> list[Event]:
        """Return the events that have come since the last call."""
        self._leave_stuck_thread()
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        """Read all remaining events, and end the thread."""
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
        """Return the queue at which the thread blocks, or None."""
        at = self._at
        return at[0] if at is not None and self._age(at[1]) > STUCK_S else None

    def abandon(self) -> None:
        """Abandon the thread where it blocks; if it ever continues, it ends without an effect."""
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
        last = id(sender) in self._retired  # read before the queue: no event can follow
        if not last and sender.queue.empty():  # which takes no lock, and a tenth of the time
            return
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

"""Counters of every worker in shared memory, its first fault, its restarts, and the run's progress:
env steps, and seconds of training, which the driver counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
import numpy.typing as npt

from sampleforge.runtime.watch import seconds_since
from sampleforge.shared.arrays import Layout, SharedArrays

TICK = 0.1
"""Seconds between two looks at the clock."""
PAUSE_S = 1.0
"""Seconds without a look after which the process counts as paused, and not as busy."""


class TrainingClock:
    """Seconds of training in shared memory, float64: 0 until the driver's `ClockTicker` counts
    them. Time in which the run was paused is left out. ``ended``: the driver has ended the training
    before a limit was reached (`end`). ``halted``: no more env steps are taken (`halt`).
    ``settled``: the learners have published their last weights (`settle`)."""

    def __init__(self) -> None:
        flags = {name: ((1,), "bool") for name in ("ended", "halted", "settled")}
        self._arrays = SharedArrays({"seconds": ((1,), "float64"), **flags})

    @property
    def seconds(self) -> float:
        return float(self._arrays["seconds"][0])

    @property
    def ended(self) -> bool:
        return bool(self._arrays["ended"][0])

    def end(self) -> None:
        """Tell all workers that the training ends."""
        self._arrays["ended"][0] = True

    @property
    def halted(self) -> bool:
        return bool(self._arrays["halted"][0])

    def halt(self) -> None:
        """Have all workers take no more env steps, also in a rollout that has begun."""
        self._arrays["halted"][0] = True

    @property
    def settled(self) -> bool:
        return bool(self._arrays["settled"][0])

    def settle(self) -> None:
        """Tell all workers that the published weights are the last ones, for which no more env
        steps are taken."""
        self._arrays["settled"][0] = True
        self.halt()

    def advance(self, seconds: float) -> None:
        """Count ``seconds`` more. One process at a time does so."""
        self._arrays["seconds"][0] += seconds


class ClockTicker:
    """Counts the seconds of a `TrainingClock` from the moment when ``has_begun()`` is true until it
    is ended, and finds the pauses of this process: Ctrl-Z, SIGSTOP, a virtual machine that is held.

    A thread of its own looks every `TICK` seconds, so that a busy process is not taken for a paused
    one. Time in which the computer sleeps is no time for ``monotonic`` at all.
    """

    def __init__(self, clock: TrainingClock, has_begun: Callable[[], bool]) -> None:
        self._clock = clock
        self._has_begun = has_begun
        self._begun = False
        self._lock = threading.Lock()
        self._last = monotonic()
        self._pauses: list[tuple[float, float]] = []
        """When each pause ended, and how many seconds it had lasted."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training clock", daemon=True)

    def start(self) -> None:
        """Begin to look at the clock."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; the clock stands still from now on."""
        self.look()
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def age(self, at: float) -> float:
        """Return the seconds since ``at`` (of ``monotonic``), without the pauses since then."""
        self.look()
        return seconds_since(at) - sum(length for ended, length in self._pauses if ended > at)

    def _run(self) -> None:
        while not self._closed.wait(TICK):
            self.look()

    def look(self) -> None:
        """Count the seconds since the last look, which is up to `TICK` ago."""
        with self._lock:
            now = monotonic()
            passed, self._last = now - self._last, now
            if passed > PAUSE_S:
                self._pauses.append((now, passed - TICK))
                passed = TICK
            self._begun = self._begun or self._has_begun()
            if self._begun and not self._closed.is_set() and not self._clock.ended:
                self._clock.advance(passed)


class RestartBudget:
    """Counts the restarts of ``workers`` workers of one kind: the driver may make ``limit``.

    The count of each worker is in shared memory: its next life seeds its episodes and actions by
    it, so that it does not repeat them."""

    def __init__(self, workers: int, limit: int) -> None:
        self.workers = workers
        self.limit = limit
        self._arrays = SharedArrays({"lives": ((workers,), "int64")})

    @property
    def total(self) -> int:
        """Number of restarts so far."""
        return int(self._arrays["lives"].sum())

    def life(self, worker: int) -> int:
        """Return how often ``worker`` was restarted."""
        return int(self._arrays["lives"][worker])

    def begin(self, worker: int) -> bool:
        """Count a restart of ``worker``; return False if the budget is used up."""
        if self.total >= self.limit:
            return False
        self._arrays["lives"][worker] += 1
        return True


LINE = 8
"""Numbers of 8 bytes in a cache line."""
FAULT_BYTES = 16 << 10
"""Longest text of a fault in bytes. The beginning of a longer one is left out, because the cause
stands at the end."""


class Counters:
    """A row of float64 numbers per worker in shared memory; each row has one writer, and begins at
    a cache line, so that two workers never write the same one.

    A worker writes its own `row`; readers read or sum whole columns. A number is read atomically,
    but two numbers need not be of the same instant. Each worker may also write one `note`, before
    the number that it explains. ``first_fault`` holds the text of the first fault that
    ``env_restarts`` counts.
    """

    NOTE_BYTES = 512

    def __init__(self, names: Sequence[str], workers: int) -> None:
        self.names = tuple(names)
        self.resize(workers)

    def resize(self, workers: int) -> None:
        """Make room for so many workers, before any of them counts: all numbers are 0 again."""
        self._arrays = SharedArrays(self.layout(self.names, workers))
        self.first_fault = FirstFault(workers)

    @classmethod
    def layout(cls, names: Sequence[str], workers: int) -> Layout:
        """Return the arrays of the counters. The numbers stand at the beginning of the memory, so
        that a program that measures the run can read them there."""
        return {
            "values": ((workers, -(-len(names) // LINE) * LINE), "float64"),
            "notes": ((workers, cls.NOTE_BYTES), "uint8"),
        }

    def row(self, worker: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return one worker's numbers by name, each as a [1] view: ``row["env_steps"] += 32``."""
        values = self._arrays["values"][worker]
        return {name: values[i : i + 1] for i, name in enumerate(self.names)}

    def note(self, worker: int, text: str) -> None:
        """Write the note of ``worker``, unless it has one: the first is kept."""
        note = self._arrays["notes"][worker]
        if not note[0]:
            data = text.encode()[: self.NOTE_BYTES].ljust(self.NOTE_BYTES, b"\0")
            note[1:] = np.frombuffer(data[1:], np.uint8)
            note[0] = data[0]  # last: an incomplete note is neither read nor kept

    def noted(self, worker: int) -> str:
        """Return the note of ``worker``; empty if it has none or is on another machine."""
        note = self._arrays["notes"][worker]
        return bytes(note).rstrip(b"\0").decode(errors="ignore") if note[0] else ""

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return one number of every worker, as a copy, float64 [workers]."""
        column: npt.NDArray[np.float64] = self._arrays["values"][:, self.names.index(name)].copy()
        return column

    def columns(self, names: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return some numbers of every worker, all read at one moment, float64 [names, workers]."""
        values = self._arrays["values"].copy()
        return values[:, [self.names.index(name) for name in names]].T

    def set_remote(self, rows: npt.NDArray[np.float64], *, keep: int) -> None:
        """Set the first rows [n, names] except row ``keep``, for workers whose own counters are in
        the memory of another machine."""
        remote = np.flatnonzero(np.arange(len(rows)) != keep)
        self._arrays["values"][remote, : len(self.names)] = rows[remote]

    def total(self, name: str) -> float:
        """Return the sum of one number over the workers."""
        return float(self.column(name).sum())


class FirstFault:
    """The first fault of each worker, as a text that the worker writes once; the driver reads the
    earliest.

    The number of faults is in `Counters`. Both outlive a worker that is replaced, so that its
    successor does not report again.
    """

    def __init__(self, workers: int) -> None:
        self._arrays = SharedArrays(
            {
                "at": ((workers, 8), "float64"),
                "size": ((workers, 8), "int64"),
                "text": ((workers, FAULT_BYTES), "uint8"),
            }
        )

    def put(self, worker: int, text: str, at: float) -> None:
        """Write ``text``, with the time ``at`` (``monotonic()``), unless this worker has
        written one before."""
        arrays = self._arrays
        if arrays["size"][worker, 0]:
            return
        data = text.encode(errors="replace")[-FAULT_BYTES:]
        arrays["text"][worker, : len(data)] = bytearray(data)
        arrays["at"][worker, 0] = at
        arrays["size"][worker, 0] = len(data)  # last: an incomplete text is never read

    def get(self) -> str | None:
        """Return the earliest text so far, or None."""
        sizes = self._arrays["size"][:, 0]
        faulty = [worker for worker in range(len(sizes)) if sizes[worker]]
        if not faulty:
            return None
        first = min(faulty, key=lambda worker: float(self._arrays["at"][worker, 0]))
        data: bytes = self._arrays["text"][first, : sizes[first]].tobytes()
        return data.decode(errors="replace")


@dataclass(frozen=True)
class Progress:
    """Env steps and seconds so far, including earlier runs of the same folder, and their limits.

    ``clock`` has the seconds since this run's first env step or update, without pauses.
    """

    counters: Counters
    clock: TrainingClock
    base_env_steps: int = 0
    base_wall_s: float = 0.0
    limit_env_steps: int | None = None
    limit_s: float | None = None

    @property
    def env_steps(self) -> int:
        return self.base_env_steps + int(self.counters.total("env_steps"))

    @property
    def wall_s(self) -> float:
        return self.base_wall_s + self.clock.seconds

    @property
    def fraction(self) -> float:
        """Fraction of the nearer limit that is used up, 0 to 1; 0 without limits."""
        parts = [0.0]
        if self.limit_env_steps is not None:
            parts.append(self.env_steps / max(1, self.limit_env_steps))
        if self.limit_s is not None:
            parts.append(self.wall_s / max(1e-9, self.limit_s))
        return min(1.0, max(parts))

    def end(self) -> None:
        """End the training in order, as if a limit had been reached: ranks agree on it."""
        self.clock.end()

    @property
    def limit_reached(self) -> bool:
        """Whether a limit of the training has been reached, or the driver has ended it."""
        return self.clock.ended or self.fraction >= 1.0

    @property
    def done(self) -> bool:
        """Whether the training is over."""
        return self.limit_reached


@dataclass(frozen=True)
class AgreedProgress(Progress):
    """Progress of several ranks, which end together.

    It is done when the rows of all ``ranks`` (worker numbers) say that the ranks have agreed to
    end. They agree after an update, so that no sampled steps are lost and no rank leaves while
    another one waits for it."""

    ranks: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        return bool(self.counters.column("ended")[list(self.ranks)].all())

"""Counters of every worker in shared memory, its first fault, and the run's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import Layout, SharedArrays
from sampleforge.shared.training_clock import TrainingClock

FAULT_BYTES = 16 << 10
"""Longest text of a fault in bytes. The beginning of a longer one is left out, because the cause
stands at the end."""


class Counters:
    """A row of float64 numbers per worker in shared memory; each row has one writer.

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
            "values": ((workers, len(names)), "float64"),
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

    def set_remote(self, rows: npt.NDArray[np.float64], *, keep: int) -> None:
        """Set the first rows [n, names] except row ``keep``, for workers whose own counters are in
        the memory of another machine."""
        remote = np.flatnonzero(np.arange(len(rows)) != keep)
        self._arrays["values"][remote] = rows[remote]

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

    ``clock`` has the seconds since this run's first env step, without pauses.
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

"""What every process counts about itself in shared memory: numbers, the first fault, progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

import numpy as np
import numpy.typing as npt

from sampleforge.shared.arrays import SharedArrays

FAULT_BYTES = 16 << 10
"""Bytes of a text; of a longer one the beginning is left out, as the cause stands at the end."""


class Counters:
    """A row of float64 numbers per worker in shared memory; each row has one writer.

    Writers index their own row by `index`; readers sum or look at whole columns. A number is read
    whole, but two numbers need not be of the same instant. Beside them each worker may leave one
    `note`, before the number that it explains. ``first_fault`` has the text of what
    ``env_restarts`` counts.
    """

    NOTE_BYTES = 512

    def __init__(self, names: Sequence[str], workers: int) -> None:
        self.names = tuple(names)
        self._arrays = SharedArrays(
            {
                "values": ((workers, len(names)), "float64"),
                "notes": ((workers, self.NOTE_BYTES), "uint8"),
            }
        )
        self.first_fault = FirstFault(workers)

    def row(self, worker: int) -> dict[str, npt.NDArray[np.float64]]:
        """One worker's numbers by name, each as a [1] view: ``row["env_steps"] += 32``."""
        values = self._arrays["values"][worker]
        return {name: values[i : i + 1] for i, name in enumerate(self.names)}

    def note(self, worker: int, text: str) -> None:
        """Leave a text of ``worker``, unless there is one: the first is kept."""
        note = self._arrays["notes"][worker]
        if not note[0]:
            data = text.encode()[: self.NOTE_BYTES]
            note[: len(data)] = np.frombuffer(data, np.uint8)

    def noted(self, worker: int) -> str:
        """The note of ``worker``; empty without one, or if it is on another machine."""
        return bytes(self._arrays["notes"][worker]).rstrip(b"\0").decode(errors="ignore")

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """One number of every worker, as a copy [workers]."""
        column: npt.NDArray[np.float64] = self._arrays["values"][:, self.names.index(name)].copy()
        return column

    def tell(self, rows: npt.NDArray[np.float64], *, keep: int) -> None:
        """Set the first rows [n, names], but for row ``keep``, to what their writers have said: for
        workers that write into memory of another machine."""
        others = np.flatnonzero(np.arange(len(rows)) != keep)
        self._arrays["values"][others] = rows[others]

    def total(self, name: str) -> float:
        """Sum of one number over the workers."""
        return float(self.column(name).sum())


class FirstFault:
    """A text per worker, each written once and by that worker alone; the driver reads the earliest.

    How many faults there were is counted in `Counters`, so that a worker
    that is replaced neither counts nor tells anew.
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
        """Keep ``text``, of the time ``at``, unless this worker has said something before."""
        arrays = self._arrays
        if arrays["size"][worker, 0]:
            return
        data = text.encode(errors="replace")[-FAULT_BYTES:]
        arrays["text"][worker, : len(data)] = bytearray(data)
        arrays["at"][worker, 0] = at
        arrays["size"][worker, 0] = len(data)  # last: a text that is half written is not there

    def get(self) -> str | None:
        """The earliest text so far."""
        sizes = self._arrays["size"][:, 0]
        said = [worker for worker in range(len(sizes)) if sizes[worker]]
        if not said:
            return None
        first = min(said, key=lambda worker: float(self._arrays["at"][worker, 0]))
        data: bytes = self._arrays["text"][first, : sizes[first]].tobytes()
        return data.decode(errors="replace")


@dataclass(frozen=True)
class Progress:
    """Env steps and seconds so far, earlier runs of the same folder counted in, and their limits.

    ``started`` is the wall clock (seconds since the epoch) at which this run began.
    """

    counters: Counters
    started: float
    base_env_steps: int = 0
    base_wall_s: float = 0.0
    limit_env_steps: int | None = None
    limit_s: float | None = None

    @property
    def env_steps(self) -> int:
        return self.base_env_steps + int(self.counters.total("env_steps"))

    @property
    def wall_s(self) -> float:
        return self.base_wall_s + time() - self.started

    @property
    def fraction(self) -> float:
        """Part of the nearer limit that is used up, 0 to 1; 0 without limits."""
        parts = [0.0]
        if self.limit_env_steps is not None:
            parts.append(self.env_steps / max(1, self.limit_env_steps))
        if self.limit_s is not None:
            parts.append(self.wall_s / max(1e-9, self.limit_s))
        return min(1.0, max(parts))

    @property
    def done(self) -> bool:
        return self.fraction >= 1.0


@dataclass(frozen=True)
class AgreedProgress(Progress):
    """Done when ``ranks`` say that all have agreed on it: they end together, after an update, so
    that nothing that was sampled is lost and none leaves while another waits for it."""

    ranks: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        return bool(self.counters.column("ended")[list(self.ranks)].all())

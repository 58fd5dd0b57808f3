"""Numbers that every process keeps about itself and the driver reads at any time, and a note."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sampleforge.data.first_fault import FirstFault
from sampleforge.data.shared import SharedArrays


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
        """Set all rows [workers, names], but for row ``keep``, to what their writers have said: for
        workers that write into memory of another machine."""
        others = np.arange(len(rows)) != keep
        self._arrays["values"][others] = rows[others]

    def total(self, name: str) -> float:
        """Sum of one number over the workers."""
        return float(self.column(name).sum())

"""The first error that environments raised in a run: its text, from the worker to the driver."""

from __future__ import annotations

from sampleforge.data.shared import SharedArrays

ROOM = 16 << 10
"""Bytes of a text; of a longer one the beginning is left out, as the cause stands at the end."""


class FirstFault:
    """A text per worker, each written once and by that worker alone; the driver reads the earliest.

    How many faults there were is counted elsewhere (`sampleforge.data.counters`), so that a worker
    that is replaced neither counts nor tells anew.
    """

    def __init__(self, workers: int) -> None:
        self._arrays = SharedArrays(
            {
                "at": ((workers, 8), "float64"),
                "size": ((workers, 8), "int64"),
                "text": ((workers, ROOM), "uint8"),
            }
        )

    def put(self, worker: int, text: str, at: float) -> None:
        """Keep ``text``, of the time ``at``, unless this worker has said something before."""
        arrays = self._arrays
        if arrays["size"][worker, 0]:
            return
        data = text.encode(errors="replace")[-ROOM:]
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

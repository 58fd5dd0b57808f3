"""Two copies (halves) of a value in shared memory, of which one is always complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sampleforge.shared.arrays import Layout, SharedArrays

T = TypeVar("T")

COUNTS: Layout = {"begun": ((1,), "int64"), "published": ((1,), "int64")}
"""The arrays that `Halves` needs."""


class Halves:
    """The protocol of a value with two halves. ``arrays`` hold `COUNTS` beside the halves.

    The writer fills the half that is not in use and then announces it; readers copy the announced
    half. The publication after next overwrites the half that a reader copies, and the writer
    announces that in ``begun`` *before* it begins. A reader checks ``begun`` after its copy and
    copies again if it was overtaken. (The published count alone would not show a write in
    progress.) There is no lock and no torn read. If the writer is killed, the announced half is
    complete, and its successor writes the other half from the beginning.

    There is one writer at a time and any number of readers.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._arrays = arrays

    @property
    def published(self) -> int:
        """Number of publications so far; half ``published % 2`` is the newest."""
        return int(self._arrays["published"][0])

    def begin(self) -> int:
        """Return the half (0 or 1) to write. Called by the writer."""
        count = self.published + 1
        self._arrays["begun"][0] = count
        return count % 2

    def publish(self) -> None:
        """Make the half of `begin` the newest one. Called by the writer."""
        self._arrays["published"][0] = self.published + 1

    def read(self, copy: Callable[[int], T]) -> tuple[int, T]:
        """Return the number of publications and what ``copy(half)`` returned for the newest half.
        ``copy`` is called again if the half was overwritten meanwhile."""
        while True:
            count = self.published
            copied = copy(count % 2)
            if int(self._arrays["begun"][0]) < count + 2:
                return count, copied

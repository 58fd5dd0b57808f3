"""Notices of each env row that has started: many rows take long, and a worker reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_told: list[Callable[[], None]] = []


@contextmanager
def told_of_rows(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` in the body whenever an env row of this process has been constructed or reset
    for the first time, in whichever thread."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def tell_of_row() -> None:
    """Tell that another row has been constructed, or reset for the first time."""
    for tell in list(_told):
        tell()

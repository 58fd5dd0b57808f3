"""Output streams that a run outlives: `| head`, a terminal that has gone, a full disk, one that was
closed before the start, and one that has no letters for what is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class LastingStream:
    """Writes to ``stream``, and nowhere from the first error on, which ``lost`` holds then."""

    def __init__(self, stream: TextIO) -> None:
        self.lost: OSError | None = None
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        """Let what is still in the buffers go nowhere, too: Python writes it at its end."""
        self.lost = self.lost or error
        with suppress(OSError, ValueError):  # a stream of a notebook has no file descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def make_lasting() -> tuple[LastingStream, LastingStream]:
    """Replace stdout and stderr by streams that raise no OSError; returns both."""
    out, err = LastingStream(sys.stdout), LastingStream(sys.stderr)
    sys.stdout, sys.stderr = out, err
    return out, err


@contextmanager
def lasting_streams() -> Iterator[tuple[LastingStream, LastingStream]]:
    """As `make_lasting`, for as long as the context."""
    before = sys.stdout, sys.stderr
    try:
        yield make_lasting()
    finally:
        sys.stdout, sys.stderr = before


def open_closed_streams() -> None:
    """Have each of stdin, stdout and stderr that is closed (``>&-``) read and write /dev/null.

    Python has None in its place then, and its number would go to the next file that is opened: what
    a worker or a library prints would be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number and not _is_open(number):
            os.dup2(nowhere, number)
            os.close(nowhere)
            nowhere = number
        os.set_inheritable(nowhere, True)
        mode = "r" if number == 0 else "w"
        stream = open(nowhere, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def write_any_letter() -> None:
    """Have stdout write letters that its encoding lacks as ``\\xe4``, as stderr does, and not
    raise."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")

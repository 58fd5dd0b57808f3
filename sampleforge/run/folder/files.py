"""Files of a run folder that grow by whole lines, and the error of a run folder that cannot be
written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sampleforge.config import ConfigError


class CannotWrite(OSError):
    """A file of the run folder could not be written: the disk is full, read-only or broken. The
    message has the reason, the remedy and the file."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Return a context that turns an OSError into `CannotWrite`, which names ``path``."""
    try:
        yield
    except OSError as error:
        reason = (
            f"{error.strerror}: cannot write to the run folder; make room, then run the same "
            "command again to resume from the last checkpoint, if there is one"
        )
        raise CannotWrite(error.errno, reason, str(path)) from error


def unusable(folder: Path, error: OSError) -> ConfigError:
    """Return the error of a run folder that cannot be made or read, because of ``error``."""
    where = "" if error.filename is None else f" ({error.filename})"
    return ConfigError(
        f"run folder {folder} cannot be used: {error.strerror}{where}; give another --run-dir"
    )


class LineFile:
    """Appends lines. Each line goes to the operating system at once, so a killed process loses no
    line that it wrote.

    If a kill left the last line incomplete, it is cut off when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(self._handle, _whole_lines(path))

    def write(self, line: str) -> None:
        """Append one line. Raises CannotWrite, which names the file, as on a full disk."""
        left = line.encode(errors="backslashreplace") + b"\n"
        with writing(self.path):
            while left:  # a disk that fills up takes a part before it refuses the rest
                left = left[os.write(self._handle, left) :]

    def close(self) -> None:
        os.close(self._handle)


def _whole_lines(path: Path, block: int = 1 << 16) -> int:
    """Return the number of bytes of ``path`` up to the end of its last whole line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - block)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0

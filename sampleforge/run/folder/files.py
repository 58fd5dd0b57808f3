"""Files that a kill leaves usable: replaced atomically, or grown by whole lines; and JSON that
every reader accepts."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"


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
            "command again to resume from the last checkpoint"
        )
        raise CannotWrite(error.errno, reason, str(path)) from error


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace the contents of ``path`` by ``data``: write a temporary file beside it, sync it,
    rename it, and sync the folder. At any moment ``path`` has either the old or the new contents;
    without ``sync`` that does not hold across a power cut, but the disk is not waited for.

    Raises OSError (disk full, read-only, ...); ``path`` is then unchanged and no temporary file is
    left. A process that is killed meanwhile may leave a file with `TEMPORARY_SUFFIX`.
    """
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    # Not mkstemp, whose files are private to their owner: files of a run folder follow the umask.
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    if sync:
        fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Return JSON that every reader accepts: NaN and infinities, which JSON does not have, become
    null."""
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def write_json(path: Path, values: Mapping[str, Any], indent: int | None = 1) -> None:
    """Replace the contents of ``path`` by `to_json` of ``values``; see `write_atomically`."""
    write_atomically(path, (to_json(values, indent=indent) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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

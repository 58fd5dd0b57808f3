"""Files that a kill leaves with the old or the new contents, and JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"


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
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:  # that of a write names no file
            error.filename = str(path)
        raise
    if sync:
        fsync(path.parent)


def fsync(path: Path) -> None:
    """Sync a file to the disk, or a folder, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
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

"""Files that are either the old or the new one, whatever happens while they are written."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: temporary file beside it, fsync, rename, fsync of the folder.

    Raises OSError (disk full, read-only, ...); ``path`` is then as before and nothing is left over.
    A process killed here may leave a file of TEMPORARY_SUFFIX.
    """
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    # mkstemp would make it private to its owner; this one follows the umask, as all files do.
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON that every reader takes: NaN and infinities, for which JSON has no words, are null."""
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

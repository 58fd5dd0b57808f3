"""The lock of a folder, so that one command at a time writes into it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sampleforge.config import ConfigError


def lock_folder(folder: Path, flag: str) -> int:
    """Lock ``folder`` against other processes; return the file descriptor that holds the lock. The
    kernel releases it when this process ends, in any way. ``flag``: the flag that names the folder.

    Raises ConfigError, which names the owner, if another process has the lock.
    """
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise ConfigError(
            f"{flag} {folder} is in use by process {owner}; stop that run first, or give "
            "another folder"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle

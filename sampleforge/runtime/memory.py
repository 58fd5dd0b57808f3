"""How much memory there is, before it is needed."""

from __future__ import annotations

import os

import psutil


def shared_memory_free() -> int | None:
    """Bytes that may be put into shared memory now, or None where nobody says (no /dev/shm)."""
    if not os.path.isdir("/dev/shm"):
        return None
    stat = os.statvfs("/dev/shm")
    return min(stat.f_bavail * stat.f_frsize, int(psutil.virtual_memory().available))


def human_bytes(count: float) -> str:
    """A number of bytes as people write it: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"

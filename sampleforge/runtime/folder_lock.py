"""The lock of a folder, so that one command at a time writes into it, and which locks are held."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from time import monotonic, sleep

from sampleforge.config import ConfigError

RELEASE_S = 5.0
"""Seconds that an owner of a lock may take to end, where that is waited for: a worker whose run was
killed sees it at once, but may have a file to close."""


def lock_when_free(folder: Path, flag: str) -> int:
    """Lock ``folder`` as `lock_folder`, but wait `RELEASE_S` for an owner that is about to end."""
    limit = monotonic() + RELEASE_S
    while True:
        try:
            return lock_folder(folder, flag)
        except ConfigError:
            if monotonic() >= limit:
                raise
            sleep(0.05)


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


class HeldLocks:
    """The locks of files that processes of this machine hold now, read from the kernel's table
    without touching the files. ``known``: False where there is no such table (it is Linux's)."""

    def __init__(self, table: Path = Path("/proc/locks")) -> None:
        self._held: set[tuple[int, int]] = set()
        """(inode, device) and (inode, -pid) of each lock: the device number in the table is not
        always that of the file."""
        try:
            lines = table.read_text().splitlines()
        except OSError:
            self.known = False
            return
        self.known = True
        for line in lines:
            words = line.split()
            if len(words) < 6 or words[1] != "FLOCK":
                continue
            major, minor, inode = words[5].split(":")
            self._held.add((int(inode), os.makedev(int(major, 16), int(minor, 16))))
            self._held.add((int(inode), -int(words[4])))

    def holds(self, lock: os.stat_result, owner: int | None) -> bool:
        """Return whether a process holds the lock of a file. ``owner``: the process id in the
        file."""
        of_owner = owner is not None and (lock.st_ino, -owner) in self._held
        return of_owner or (lock.st_ino, lock.st_dev) in self._held

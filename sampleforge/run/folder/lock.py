"""Which folders of runs are locked, and the lock of the folder of a sweep or a population."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sampleforge.config import ConfigError
from sampleforge.run.folder.trust import check_places
from sampleforge.runtime.folder_lock import lock_folder


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


@contextmanager
def population_folder(path: Path, kind: Kind) -> Iterator[Path]:
    """Create the folder of a sweep or of a population of runs, lock it against other launchers, and
    yield its absolute path. Raises ConfigError if it cannot be used, if it is of another ``kind``,
    or if a link in it leads out of it."""
    folder = path.absolute()
    check_kind(folder, kind, "--folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_places(folder, tuple(os.listdir(folder)))
        lock = lock_folder(folder, "--folder")
    except OSError as error:
        raise ConfigError(
            f"--folder {folder} cannot be used: {error.strerror} ({error.filename}); give another "
            "folder"
        ) from error
    try:
        yield folder
    finally:
        os.close(lock)


STUDY, POPULATION = "study.db", "population.json"
"""The files by which the folders of sweeps and of populations of runs are recognised."""
Kind = Literal["run", "sweep", "population of runs"]
_KINDS: dict[str, Kind] = {
    "config.yaml": "run",
    "sweep.yaml": "sweep",
    STUDY: "sweep",
    POPULATION: "population of runs",
}
"""File -> the kind of folder that has it."""


def check_kind(folder: Path, kind: Kind, flag: str) -> None:
    """Raise ConfigError if ``folder`` is of another kind than the one that is to be written there:
    each would overwrite results of the other. ``flag``: the flag that names the folder."""
    for name, other in _KINDS.items():
        if other != kind and os.path.exists(folder / name):
            raise ConfigError(
                f"{flag} {folder} is the folder of a {other} (it has {name}), not of a {kind}; "
                "give another folder"
            )

"""What a test could leave behind: processes, threads, names in /dev/shm, files in the checkout.

Other programs of this machine make names in /dev/shm as well, while a test runs. A name is a test's
only if it says so: a process of this test session has it open or mapped; or it carries the pid of
one that ran during the test, dead or alive (torch's names do, `tests.support.pids.sitecustomize`
keeps the list); or it carries the session's token (multiprocessing's semaphores and shared memory).

With pytest-xdist each of its workers is a session of its own here, with its own list and token, and
the leader of a process group of its own: a worker finds what its tests have left and not what those
of another have. A file in the checkout does not tell who made it: it fails the tests of all workers
that ran meanwhile.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing import process, shared_memory
from pathlib import Path

import psutil

from tests.support import REPO
from tests.support.processes import helpers, our_processes

SHM = Path("/dev/shm")
IGNORED_FOLDERS = {".git", ".venv", "__pycache__", "build", "dist", "runs"}
IGNORED_FOLDERS |= {".pytest_cache", ".mypy_cache", ".ruff_cache"}
"""Caches, and `runs/`: a training may be going on in the checkout while the tests run."""
IGNORED_SUFFIXES = (".py", ".md", ".yaml")
"""Sources: someone may be editing them."""
SETTLED_NS = 1_000_000_000
"""Age of a folder's time from which on a later change alters it, on any file system."""


@dataclass(frozen=True)
class Footprint:
    """What a test could leave behind, as it is at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    shared: frozenset[Path]
    files: frozenset[str]
    living: frozenset[int]
    """The pids of our processes that run."""
    noted: tuple[int, ...]
    """The pids of all our Python processes so far, in the order of their starts."""

    @classmethod
    def now(cls, cwd: Path) -> Footprint:
        processes = our_processes()
        return cls(
            processes=processes,
            threads=frozenset(threading.enumerate()),
            shared=frozenset(SHM.iterdir()) if SHM.is_dir() else frozenset(),
            files=frozenset(map(str, cwd.rglob("*"))) | CHECKOUT.files(),
            living=with_helpers(processes),
            noted=SESSION.noted(),
        )

    def litter_since(self, before: Footprint) -> list[str]:
        """One line for each thing that is here now and was not before."""
        pids = before.living | set(self.noted[len(before.noted) :])
        return [
            *(f"process {process}" for process in self.processes - before.processes),
            *(f"thread {thread}" for thread in self.threads - before.threads),
            *(f"{name}" for name in self.shared - before.shared if SESSION.made(name, pids)),
            *(f"file {file}" for file in self.files - before.files),
        ]


class TestSession:
    """Which names in /dev/shm processes of this test session have made."""

    __test__ = False  # no class of tests

    def __init__(self) -> None:
        self.token = secrets.token_hex(3)
        self._pids: Path | None = None

    def begin(self) -> None:
        """Keep the list of our processes, and have our multiprocessing names carry the token."""
        handle, name = tempfile.mkstemp(prefix="sampleforge-tests-")
        os.close(handle)
        self._pids = Path(name)
        os.environ["SAMPLEFORGE_TEST_PIDS"] = name
        # Inherited by the processes that multiprocessing starts from here.
        process.current_process()._config["semprefix"] = f"/mp{self.token}"  # type: ignore[attr-defined]
        shared_memory._SHM_NAME_PREFIX = f"/ps{self.token}"  # type: ignore[attr-defined]

    def end(self) -> None:
        assert self._pids is not None
        self._pids.unlink()

    def made(self, name: Path, pids: frozenset[int]) -> bool:
        """Whether one of our processes has made the name, as far as can be told: one of ``pids``,
        or one that runs."""
        if self.token in name.name:
            return True
        carried = pids_in(name.name)
        return bool(carried & pids) or any(holds(pid, name) for pid in living())

    def noted(self) -> tuple[int, ...]:
        """The pids of our Python processes, of those that have ended too."""
        assert self._pids is not None
        return tuple(map(int, self._pids.read_text().split()))


SESSION = TestSession()
TORCH = re.compile(r"torch_(\d+)_\d+_\d+$")
"""Its pid, a random number and a counter."""
NUMBER = re.compile(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])")


def pids_in(name: str) -> set[int]:
    """The numbers in a name that may be the pid of the process that made it."""
    of_torch = TORCH.match(name)
    return {int(number) for number in ([of_torch[1]] if of_torch else NUMBER.findall(name))}


def living() -> frozenset[int]:
    """The pids of our processes that run."""
    return with_helpers(our_processes())


def with_helpers(processes: frozenset[psutil.Process]) -> frozenset[int]:
    """The pids of these processes, of this one and of its helpers."""
    return frozenset([os.getpid(), *helpers(), *(ours.pid for ours in processes)])


def holds(pid: int, name: Path) -> bool:
    """Whether a process has this file open or mapped."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return mapped(str(name), maps) or any(target_of(link) == str(name) for link in links)


def mapped(name: str, maps: str) -> bool:
    """Whether the file is among a process's mappings: the last column of /proc/<pid>/maps."""
    paths = (line.split(maxsplit=5)[5:] for line in maps.splitlines())
    return any(path and path[0].removesuffix(" (deleted)") == name for path in paths)


def target_of(link: Path) -> str | None:
    """Where a link leads; None if it has gone meanwhile."""
    try:
        return os.readlink(link)
    except OSError:
        return None


class Listing:
    """The files below a folder, sources and `IGNORED_FOLDERS` left out. A folder is read again only
    if its contents may have changed: then its time has, or it was read when its time was so new
    that a later change need not have altered it."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._read: dict[str, tuple[int, bool, list[str], list[str]]] = {}

    def files(self) -> frozenset[str]:
        """Return the paths of all files that there are now."""
        found: list[str] = []
        folders = [self._root]
        while folders:
            inner, files = self._contents(folders.pop())
            folders += inner
            found += files
        return frozenset(found)

    def _contents(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the folders and the files in a folder; none if it has gone."""
        try:
            changed = os.stat(folder).st_mtime_ns
            before = self._read.get(folder)
            if before is not None and before[:2] == (changed, True):
                return before[2:]
            settled = time.time_ns() - changed > SETTLED_NS
            with os.scandir(folder) as scanned:
                entries = list(scanned)
        except FileNotFoundError:
            return [], []
        inner = [
            entry.path
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and entry.name not in IGNORED_FOLDERS
            and not entry.name.endswith(".egg-info")
        ]
        files = [
            entry.path
            for entry in entries
            if not entry.is_dir() and not entry.name.endswith(IGNORED_SUFFIXES)
        ]
        self._read[folder] = changed, settled, inner, files
        return inner, files


CHECKOUT = Listing(REPO)

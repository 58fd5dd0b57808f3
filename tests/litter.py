"""What a test could leave behind: processes, threads, names in /dev/shm, files in the checkout."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.processes import our_processes

REPO = Path(__file__).resolve().parent.parent
SHM = Path("/dev/shm")
IGNORED_FOLDERS = {".git", ".venv", "__pycache__", "build", "dist", "runs"}
IGNORED_FOLDERS |= {".pytest_cache", ".mypy_cache", ".ruff_cache"}
"""Caches, and `runs/`: a training may be going on in the checkout while the tests run."""
IGNORED_SUFFIXES = {".py", ".md", ".yaml"}
"""Sources: someone may be editing them."""


@dataclass(frozen=True)
class Footprint:
    """What a test could leave behind, as it is at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    shared: frozenset[Path]
    files: frozenset[Path]

    @classmethod
    def now(cls, cwd: Path) -> Footprint:
        return cls(
            processes=our_processes(),
            threads=frozenset(threading.enumerate()),
            shared=frozenset(SHM.iterdir()) if SHM.is_dir() else frozenset(),
            files=frozenset([*cwd.rglob("*"), *files_under(REPO)]),
        )

    def litter_since(self, before: Footprint) -> list[str]:
        """One line for each thing that is here now and was not before."""
        return [
            *(f"process {process}" for process in self.processes - before.processes),
            *(f"thread {thread}" for thread in self.threads - before.threads),
            *(f"{name}" for name in self.shared - before.shared if not used_by_others(name)),
            *(f"file {file}" for file in self.files - before.files),
        ]


def used_by_others(name: Path) -> bool:
    """Whether a process that is none of ours has this shared memory mapped: it is the litter of
    something else on this machine, if of anything."""
    ours = {os.getpid(), *(process.pid for process in our_processes())}
    return any(
        process.pid not in ours and str(name) in maps_of(process.pid)
        for process in psutil.process_iter()
    )


def maps_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def files_under(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n not in IGNORED_FOLDERS and not n.endswith(".egg-info")]
        yield from (Path(folder, f) for f in files if Path(f).suffix not in IGNORED_SUFFIXES)

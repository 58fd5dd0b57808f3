"""What this process may have: processors and memory of its container or control group, open
files."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from sampleforge.config import ConfigError

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
UNLIMITED_V1 = 1 << 60
"""Version 1 says "no limit" by a number near 2**63."""


def cgroup_cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return how many processors the quota is worth (0.5: half the time of one); None without a
    quota."""
    return min((quota for quota, _ in _quotas(root, own)), default=None)


def cgroup_idle_s(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the seconds of a processor that the quota has allowed and that were not used, counted
    from any time; None without a quota, or if the use is not known."""
    quota, used = min(_quotas(root, own), default=(0.0, None), key=lambda each: each[0])
    return None if used is None else quota * monotonic() - used


def _quotas(root: Path, own: Path) -> Iterator[tuple[float, float | None]]:
    """Yield (quota in processors, their seconds that were used, if known) of each group with a
    quota."""
    for folder in _groups(root, own, ""):
        text = _text(folder / "cpu.max").split()  # "150000 100000", "max 100000"
        if len(text) == 2 and text[0].isdigit() and int(text[0]) and int(text[1]):
            used = _listed(folder / "cpu.stat").get("usage_usec")
            yield int(text[0]) / int(text[1]), None if used is None else used / 1e6
    for folder in _groups(root, own, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period:
            used = _number(folder / "cpuacct.usage")
            yield quota / period, None if used is None else used / 1e9


def cgroup_memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the bytes of memory that this process's groups may have; None without a limit."""
    return min((limit for limit, _ in _memory(root, own)), default=None)


def cgroup_memory_free(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the bytes of memory that this process's groups may still have, with what the kernel
    would drop at once (files that it has read); None without a limit."""
    return min((max(0, limit - used) for limit, used in _memory(root, own)), default=None)


def _memory(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) in bytes of each group with a limit."""
    for controller, most, current in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in _groups(root, own, controller):
            limit, used = _number(folder / most), _number(folder / current)
            if limit is not None and limit < UNLIMITED_V1:
                yield limit, max(0, (used or 0) - _inactive_files(folder / "memory.stat"))


def _inactive_files(stat: Path) -> int:
    found = _listed(stat)
    return found.get("total_inactive_file", found.get("inactive_file", 0))


def _groups(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it: of version 1's
    ``controller``, or of version 2 ("")."""
    for line in _text(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        top = root / controller if controller else root
        folder = top / path.strip("/")
        while folder != top and top in folder.parents:
            if folder.is_dir() and ".." not in folder.parts:
                yield folder
            folder = folder.parent
        yield top


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _listed(path: Path) -> dict[str, int]:
    """Return the numbers in a file with a name and a number in each line."""
    lines = map(str.split, _text(path).splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def _text(path: Path) -> str:
    """Return what is in a file; nothing if there is no such file here."""
    try:
        return path.read_text()
    except OSError:
        return ""


WANTED = 16_384
"""Open files that are enough for thousands of workers. Not as many as there may be: programs that
close all files they could have would take seconds."""
PER_WORKER = 6
"""Open files of the driver for each worker's process: its control channel, its end, its events."""
SPARE = 32
"""Open files of the driver for all else: run folder, log, a checkpoint, imports."""


def raise_limit() -> None:
    """Let this process, and those that it starts, have `WANTED` open files, or as many as the hard
    limit allows: the usual soft limit is 1024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_workers(workers: int) -> None:
    """Raise ConfigError if this process may not have as many open files as so many worker processes
    need."""
    limit = _limit()
    if limit is None:
        return
    free, needed = max(0, limit - _open_now() - SPARE), workers * PER_WORKER
    if needed > free:
        raise ConfigError(
            f"the processes of {workers} workers need {needed} open files, but only {free} of "
            f"{limit} are left (ulimit -n); raise the limit (ulimit -n "
            f"{_enough(limit + needed - free)}), or start fewer workers (--num-workers, "
            "--num-ranks)"
        )


def no_more_open_files() -> bool:
    """Return whether this process can open no further file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def too_many_open_files() -> str:
    """Return what to say when a file could not be opened because there are too many."""
    limit = _limit()
    return (
        f"this process has as many open files as it may ({limit}, ulimit -n); raise the limit "
        f"(ulimit -n {_enough(4 * (limit or 1024))}), or start fewer workers (--num-workers, "
        "--num-ranks)"
    )


def _limit() -> int | None:
    """Return how many files this process may have open; None for any number."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _open_now() -> int:
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    return len(os.listdir(folder))


def _enough(needed: int) -> int:
    """Return the next power of two, of 1024 at least."""
    return max(1024, 1 << (needed - 1).bit_length())

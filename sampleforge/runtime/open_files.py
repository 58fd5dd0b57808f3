"""The number of files that a process may have open: raised as far as it may be, and checked."""

from __future__ import annotations

import errno
import os
import sys

from sampleforge.config import ConfigError

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

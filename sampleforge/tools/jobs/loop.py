"""The loop of the commands that run jobs: their folder, the launcher, the loop and its signals."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from sampleforge.config import ConfigError
from sampleforge.run.folder.kinds import Kind, check_kind
from sampleforge.run.folder.trust import check_places
from sampleforge.runtime.folder_lock import lock_folder
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.tools.jobs.jobs import (
    FULL,
    MAKE_ROOM,
    STOP_S,
    Jobs,
    JobsConfig,
    JobsScreen,
    LaunchFailed,
)
from sampleforge.tools.jobs.local import LocalJobs
from sampleforge.tools.jobs.slurm import SlurmJobs


def open_jobs(folder: Path, config: JobsConfig, most: int) -> Jobs:
    """Return the jobs of a sweep or population in ``folder``. ``most``: its number of jobs on Slurm
    unless the user has set one. Raises ConfigError if submitit or Slurm is missing."""
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise ConfigError(
            "sweeps and populations of runs need submitit, which is not installed: pip install "
            '"sampleforge[populations]"'
        ) from error
    if config.launcher == "local":
        return LocalJobs(folder, config.jobs, submitit)
    return SlurmJobs(folder, config.jobs or most, config.slurm, submitit)


POLL_S = 0.1
KILLED_S = 5.0
"""Seconds that jobs have to be gone after they were killed."""


class Launched(Protocol):
    """A sweep or a population whose training runs are jobs."""

    @property
    def done(self) -> bool: ...

    def step(self) -> None:
        """Take what the jobs have written, and start new ones. Raises LaunchFailed."""


L = TypeVar("L", bound=Launched)


@contextmanager
def launched_in(
    folder: Path, kind: Kind, config: JobsConfig, most: int, make: Callable[[Path, Jobs], L]
) -> Iterator[tuple[L, Jobs]]:
    """Lock ``folder``, which is new or of this ``kind``, and open its jobs; yield what ``make``
    makes of both, and the jobs. ``config``, ``most``: see `open_jobs`. Raises ConfigError if the
    folder cannot be used."""
    with _locked(folder, kind, config.launcher) as locked:
        jobs = open_jobs(locked, config, most)
        try:
            launched = make(locked, jobs)
        except BaseException:
            jobs.close()
            raise
        yield launched, jobs


_REPLACED = {"local": "%[jtAa]", "slurm": "%[0-9A-Za-z]"}
"""What is replaced in names of a job's files: by submitit and, with that launcher, by Slurm."""


@contextmanager
def _locked(path: Path, kind: Kind, launcher: str) -> Iterator[Path]:
    """Create the folder of a sweep or of a population of runs, lock it against other launchers, and
    yield its absolute path. Raises ConfigError if it cannot be used, if it is of another ``kind``,
    or if a link in it leads out of it."""
    folder = path.absolute()
    if pattern := re.search(_REPLACED[launcher], str(folder)):
        raise ConfigError(
            f"--folder {folder}: {pattern[0]} stands for a number of the job in the names of its "
            "files; give a folder without %"
        )
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


def run_jobs(launched: Launched, jobs: Jobs, screen: JobsScreen, *, leave: bool) -> int:
    """Step ``launched`` until it is done; return the exit code of the command.

    The first Ctrl-C, SIGTERM or SIGHUP ends the jobs in order, with their checkpoints, a second one
    at once; with ``leave`` they go on. Jobs that still run are ended also after an error, which is
    raised, that of a full disk as LaunchFailed.
    """
    interrupts = Interrupts(jobs.kill)
    with interrupts:
        interrupts.defer()
        leaves = False
        try:
            while not launched.done and interrupts.received is None:
                with _room():
                    launched.step()
                for text in jobs.take_messages():
                    screen.say(text)
                screen.update()
                time.sleep(POLL_S)
            leaves = leave and interrupts.received is not None
        finally:
            if jobs.running and not leaves:
                screen.say(f"Ending {len(jobs.running)} jobs, with their checkpoints")
                end_jobs(jobs)
            screen.close()
            jobs.close()
    return interrupts.exit_code


@contextmanager
def _room() -> Iterator[None]:
    """Return a context that turns the error of a full disk into `LaunchFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        file = "" if error.filename is None else f" ({error.filename})"
        raise LaunchFailed(f"{error.strerror}{file}; {MAKE_ROOM}") from error


def end_jobs(jobs: Jobs) -> None:
    """End all jobs in order, and at once those that take too long."""
    for ask, seconds in ((jobs.stop, STOP_S), (jobs.kill, KILLED_S)):
        deadline = time.monotonic() + seconds
        while jobs.running and time.monotonic() < deadline:
            ask()
            jobs.take_ended()
            time.sleep(POLL_S)

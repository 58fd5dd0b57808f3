"""Jobs: functions that run in processes of this machine (`local_jobs`) or on a Slurm cluster
(`slurm_jobs`).

submitit starts and cancels them. It passes functions as pickles. They are in a new folder of each
launch that only its owner can write to, and a launcher reads none of them, so that a folder from an
unknown source cannot run code.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Protocol

Work = Callable[[], None]
"""The function of a job. It can be pickled, ends in order after SIGTERM (see `EndingInOrder`), and
writes its results into files."""
STOP_S = 45.0
"""Seconds that jobs have to end in order: a run writes its last checkpoint within 30 s."""


class LaunchFailed(RuntimeError):
    """No job of a sweep or population succeeds; the message ends with the error of the last."""


class Jobs(Protocol):
    """The jobs of one sweep or population, by name."""

    limit: int
    """Number of jobs at a time."""

    @property
    def running(self) -> frozenset[str]:
        """Names of the jobs that have been started and not been returned by `take_ended`."""

    def start(self, works: Mapping[str, Work]) -> None:
        """Start a job for each work, by its name; there may be no running job of that name.
        ``works`` has no more entries than there are free places."""

    def take_ended(self) -> list[str]:
        """Return the names of the jobs that have ended since the last call, in whichever way."""

    def log(self, name: str) -> Path | None:
        """Return the file with the errors that the job printed; None before its first start."""

    def stop(self) -> None:
        """Ask all jobs to end in order; to be called until none is running."""

    def kill(self) -> None:
        """End all jobs at once."""

    def close(self) -> None:
        """Remove the files that only submitit needs."""


def new_launch(folder: Path) -> Path:
    """Return a new folder for the files of one launch; only the user can open it."""
    (folder / "jobs").mkdir(exist_ok=True)
    launch = folder / "jobs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    launch.mkdir(mode=0o700)
    return launch


def remove_pickles(launch: Path) -> None:
    """Remove the files of a launch that only submitit needs, and its folder if it has no logs."""
    for pattern in ("*.pkl", ".submission_file_*"):
        for path in launch.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it has logs
        launch.rmdir()


class EndingInOrder:
    """A context, in the main thread of a job, in which SIGTERM calls ``end`` and sets `asked`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.asked = False
        self._end = end

    def __enter__(self) -> EndingInOrder:
        self._before = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._end()

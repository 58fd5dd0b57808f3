"""Jobs: functions that run in processes of this machine (`LocalJobs`) or on a Slurm cluster
(`SlurmJobs`); their configuration (JobsConfig), and what the commands that run them show. It
imports no torch.

submitit starts and cancels them. It passes functions as pickles. They are in a new folder of each
launch that only its owner can write to, and a launcher reads none of them, so that a folder from an
unknown source cannot run code.
"""

from __future__ import annotations

import errno
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from sampleforge.config import Checked, ConfigError, UserError, check_range

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclass(frozen=True)
class JobsConfig(Checked):
    launcher: Literal["local", "slurm"] = "local"
    """Where the runs take place: in processes of this machine, or as jobs of a Slurm cluster."""
    jobs: int | None = None
    """Runs at a time (default: one per core; with slurm all members of a population, 4 trials of a
    sweep)."""
    slurm: dict[str, str | int | float | bool] = field(default_factory=dict)
    """With --launcher slurm: options of sbatch, such as partition=gpu cpus_per_task=8
    gpus_per_node=1 time=600 (minutes)."""
    leave_jobs: bool = False
    """With --launcher slurm: Ctrl-C ends only this command; its jobs go on, and the same command
    takes them over (off: Ctrl-C cancels them)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "jobs", low=1)
        if self.launcher == "slurm":
            return
        if self.slurm:
            raise ConfigError("--slurm: needs --launcher slurm; local jobs have no such options")
        if self.leave_jobs:
            raise ConfigError(
                "--leave-jobs: needs --launcher slurm; local jobs end with this command"
            )


Work = Callable[[], None]
"""The function of a job. It can be pickled, ends in order after one of the signals `ENDS` (see
`EndingInOrder`), and writes its results into files."""
ENDS = (signal.SIGTERM, signal.SIGUSR2)
"""Signals that ask a job to end in order. Slurm sends SIGUSR2, for which submitit asks, 90 s before
the time limit."""
STOP_S = 45.0
"""Seconds that jobs have to end in order: a run writes its last checkpoint within 30 s."""


class LaunchFailed(UserError, RuntimeError):
    """No job of a sweep or population succeeds, or none can be started; the message has the error
    of the last one, or the reason."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""
MAKE_ROOM = "make room, and the same command with its --folder goes on"


class Jobs:
    """The base of the jobs of one sweep or population, by name. ``limit``: number of jobs at a
    time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: dict[str, Any] = {}
        self._logs: dict[str, Path] = {}
        self._messages: list[str] = []
        self._unused: set[str] = set()

    @property
    def free(self) -> int:
        """Number of jobs that may be started now."""
        return max(0, self.limit - len(self._jobs))

    @property
    def running(self) -> frozenset[str]:
        """Names of the jobs that have been started and not been returned by `take_ended`."""
        return frozenset(self._jobs)

    def log(self, name: str) -> Path | None:
        """Return the file with the errors that the job printed; None before its first start."""
        return self._logs.get(name)

    def start(self, works: Mapping[str, Work]) -> None:
        """Start a job for each work, by its name; there may be no running job of that name.
        ``works`` has no more entries than there are `free` places. A work that a cluster refuses
        for the moment is not `running` afterwards, and to be started later. Raises LaunchFailed if
        no job runs and nothing says that it will be taken."""
        raise NotImplementedError

    def tell_unused(self, name: str, folder: Path) -> None:
        """Have the user told, once of each, of the settings that have no effect in the run in
        ``folder``, which is shown as ``name``: the runs of jobs print nothing, but log it."""
        with suppress(OSError):
            for line in (folder / "log.txt").read_text(errors="replace").splitlines():
                text = line.partition(" warning ")[2].strip()
                if " has no effect: " in text and (flag := text.split()[0]) not in self._unused:
                    self._unused.add(flag)
                    self._messages.append(f"{name}: {text}")

    def take_messages(self) -> list[str]:
        """Return what the user is to be told, and was not told before."""
        taken, self._messages = self._messages, []
        return taken

    def take_ended(self) -> list[str]:
        """Return the names of the jobs that have ended since the last call, in whichever way."""
        raise NotImplementedError

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


def launches(folder: Path) -> list[Path]:
    """Return the folders of all launches in ``folder``, that of jobs; links are left out. There are
    none if it was removed."""
    if not folder.is_dir():
        return []
    return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]


SUBMISSIONS = ".submission_file_*"
"""The scripts that submitit gives to Slurm."""


def remove_pickles(launch: Path) -> None:
    """Remove the files of a launch that only submitit needs, and its folder if it has no logs."""
    for pattern in ("*.pkl", SUBMISSIONS):
        for path in launch.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it has logs
        launch.rmdir()


def remove_unsent(launch: Path) -> None:
    """Remove the files of a submission that was refused: a submitted pickle has the job's id in its
    name, and a script that Slurm has taken is a link to one with the id."""
    for path in launch.glob("[0-9a-f]" * 32 + ".pkl"):
        path.unlink(missing_ok=True)
    for path in launch.glob(SUBMISSIONS):
        if not path.is_symlink():
            path.unlink(missing_ok=True)


class EndingInOrder:
    """A context, in the main thread of a job, in which a signal of `ENDS` calls ``end`` and sets
    `asked`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.asked = False
        self._end = end

    def __enter__(self) -> EndingInOrder:
        self._before = {number: signal.signal(number, self._handle) for number in ENDS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._end()


DRAW_S = 0.5
"""Seconds between two updates of the table."""
FILE_WIDTH = 160
"""Characters in a line of a table that is not printed to a terminal."""


class JobsScreen:
    """Shows a table on a terminal, and elsewhere one line per event. ``table`` makes the table;
    ``lines`` returns what has happened since its last call."""

    def __init__(self, table: Callable[[], RenderableType], lines: Callable[[], list[str]]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console: Console = Console(highlight=False)
        if not self.console.is_terminal:  # a table in a file may be wide
            self.console.width = FILE_WIDTH
        self._table, self._lines = table, lines
        self._live = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._next = 0.0

    def update(self) -> None:
        """Show what is new."""
        for line in self._lines():
            self.say(line)
        if self._live is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + DRAW_S
            self._live.update(self._table(), refresh=True)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the table that changes."""
        if self._live is not None:
            self._live.stop()
            self._live = None

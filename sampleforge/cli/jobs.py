"""The commands that run jobs: their loop, signals and screen."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from sampleforge.cli.key_values import KEY_VALUES, Scalar
from sampleforge.runtime.interrupts import Interrupts
from sampleforge.tools.jobs.config import JobsConfig

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sampleforge.tools.jobs.jobs import Jobs

POLL_S = 0.1
_DRAW_S = 0.5
FILE_WIDTH = 160
"""Characters in a line of a table that is not printed to a terminal."""
KILLED_S = 5.0
"""Seconds that jobs have to be gone after they were killed."""


@dataclass(frozen=True)
class JobsFlags(JobsConfig):
    """The flags of jobs; the values of --slurm are typed as KEY=VALUE."""

    slurm: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """With --launcher slurm: options of sbatch, such as partition=gpu cpus_per_task=8
    gpus_per_node=1 time=600 (minutes)."""


class Launched(Protocol):
    """A sweep or a population whose training runs are jobs."""

    @property
    def done(self) -> bool: ...

    def step(self) -> None:
        """Take what the jobs have written, and start new ones."""


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
            self._next = time.monotonic() + _DRAW_S
            self._live.update(self._table(), refresh=True)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the table that changes."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def run_jobs(launched: Launched, jobs: Jobs, screen: JobsScreen, *, leave: bool) -> int:
    """Step ``launched`` until it is done; return the exit code of the command.

    The first Ctrl-C, SIGTERM or SIGHUP ends the jobs in order, with their checkpoints, a second one
    at once; with ``leave`` they go on. Jobs that still run are ended also after an error, which is
    raised.
    """
    interrupts = Interrupts(jobs.kill)
    with interrupts:
        interrupts.defer()
        leaves = False
        try:
            while not launched.done and interrupts.received is None:
                launched.step()
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


def end_jobs(jobs: Jobs) -> None:
    """End all jobs in order, and at once those that take too long."""
    from sampleforge.tools.jobs.jobs import STOP_S

    for ask, seconds in ((jobs.stop, STOP_S), (jobs.kill, KILLED_S)):
        deadline = time.monotonic() + seconds
        while jobs.running and time.monotonic() < deadline:
            ask()
            jobs.take_ended()
            time.sleep(POLL_S)

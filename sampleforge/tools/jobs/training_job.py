"""A training run as a job: the function that the job runs, and the outcome that it writes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sampleforge.config import ConfigError
from sampleforge.env.probe import EnvProbeError
from sampleforge.populations.callbacks import population_callbacks, with_schedule_seed
from sampleforge.run.callback import Callback
from sampleforge.run.ending import describe
from sampleforge.run.folder.files import CannotWrite
from sampleforge.run.session import Session
from sampleforge.runtime.files import write_json
from sampleforge.tools.jobs.jobs import FULL, EndingInOrder
from sampleforge.tools.tracking import tracking_callbacks
from sampleforge.topologies.config import AnyConfig

Status = Literal["finished", "stopped", "interrupted", "failed", "unwritten"]
"""stopped: by `ask_to_stop`; interrupted: by the end of the job; unwritten: failed because the run
folder could not be written, as on a full disk."""
_OUTCOME, _STOP, _LOCK = "outcome.json", "stop", "job.lock"
PREDECESSOR_S = 60.0
"""Seconds that a job waits for an earlier job of the same run, which may still be ending."""
_LOOK_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """The end of a job. ``error``: what it failed with."""

    status: Status
    error: str | None = None


@dataclass(frozen=True)
class TrainingJob:
    """The function of a job that trains ``config``, which has a run folder, and writes the outcome
    into it."""

    config: AnyConfig

    def __call__(self) -> None:
        assert self.config.run_dir is not None
        folder = Path(self.config.run_dir)
        with only_job(folder / _LOCK, f"the run in {folder}"):
            with_outcome(folder, lambda: self._train(folder))

    def _train(self, folder: Path) -> Status:
        stop = StopFile(folder / _STOP)
        status = train(self.config, [stop])
        return "stopped" if status == "finished" and stop.seen else status


@contextmanager
def only_job(lock: Path, what: str) -> Iterator[None]:
    """Wait until no earlier job has the file ``lock``, and hold it. A launcher that was killed may
    leave jobs that are ending while the next one starts others. ``what`` the job trains, for the
    message: raises ConfigError if an earlier job goes on."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + PREDECESSOR_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"another job of {what} has not ended within {PREDECESSOR_S:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def with_outcome(folder: Path, work: Callable[[], Status]) -> None:
    """Do the ``work`` of a job, and write its outcome into the run's ``folder``. A killed job
    leaves none. Raises what the work raises."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        status = work()
    except Exception as error:
        text = str(error) if isinstance(error, ConfigError) else describe(error)
        write_outcome(folder, Outcome("unwritten" if _unwritten(error) else "failed", text))
        raise
    write_outcome(folder, Outcome(status))


def _unwritten(error: Exception) -> bool:
    """Return whether a run has failed because its folder could not be written."""
    full = getattr(error.__cause__, "errno", None) in FULL
    return isinstance(error, CannotWrite) or (isinstance(error, ConfigError) and full)


def train(config: AnyConfig, callbacks: Sequence[Callback]) -> Status:
    """Train ``config`` until its stop condition, a signal of `jobs.ENDS` or `Session.stop`; return
    "interrupted" or "finished". Raises what a session raises."""
    config = with_schedule_seed(config)
    session = Session(
        config, [*population_callbacks(config), *tracking_callbacks(config), *callbacks]
    )
    with EndingInOrder(session.interrupt) as ending:
        try:
            session.open()
        except EnvProbeError:
            if not ending.asked:  # Slurm sends the signal to the probe's process, too
                raise
            return "interrupted"
        with session:
            for _ in session.reports():
                pass
    return "interrupted" if ending.asked else "finished"


class StopFile(Callback):
    """Stops the session in order when the file ``path`` exists."""

    def __init__(self, path: Path) -> None:
        self.seen = False
        self._path = path
        self._next = 0.0

    def on_poll(self, session: Session) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_S
        if self._path.exists():
            self.seen = True
            session.stop()


def ask_to_stop(folder: Path) -> None:
    """Ask the job of the run in ``folder`` to end with the outcome "stopped"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STOP).touch()


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the outcome of the job of the run in ``folder``."""
    plain = {"status": outcome.status, "error": outcome.error}
    write_json(folder / _OUTCOME, plain, indent=None)


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of the run's last job; None if there is none, as after a kill."""
    try:
        plain = json.loads((folder / _OUTCOME).read_bytes())
        status, error = plain["status"], plain["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Outcome(status, error) if status in get_args(Status) else None


def forget_outcome(folder: Path) -> None:
    """Remove the outcome of an earlier job, before the next one starts."""
    (folder / _OUTCOME).unlink(missing_ok=True)


def newest_env_steps(folder: Path) -> int:
    """Return the env steps of the newest checkpoint of the run in ``folder``, which begin its
    file's name; -1 before the first."""
    steps = [path.name.partition("-")[0] for path in folder.glob("checkpoints/**/*.safetensors")]
    return max((int(step) for step in steps if step.isdecimal()), default=-1)

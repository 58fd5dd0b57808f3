"""Jobs in processes of this machine.

submitit starts them. What it lacks for training runs is here: jobs end in order, with a checkpoint,
and always with their launcher; a terminal's Ctrl-C reaches only the launcher; they share the cores
and GPUs.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sampleforge.runtime.processes import available_cores, use_cores
from sampleforge.tools.jobs.jobs import (
    ENDS,
    STOP_S,
    SUBMISSIONS,
    Jobs,
    Work,
    launches,
    new_launch,
    remove_pickles,
)

_AGAIN_S = 1.0
"""Seconds between two requests to end: one that comes while a job starts is lost."""
_LONGEST_MIN = 60 * 24 * 365
"""Time limit of a local job in minutes; submitit's default is 2."""
_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)


class LocalJobs(Jobs):
    """Jobs in processes of this machine. Each has one of ``limit`` places (None: one per core) with
    its share of the cores, and the places take turns among the GPUs."""

    def __init__(self, folder: Path, limit: int | None, submitit: Any) -> None:
        self._cores = available_cores()
        super().__init__(limit or len(self._cores))
        self._launch = new_launch(folder)
        self._executor = submitit.LocalExecutor(self._launch)
        self._executor.update_parameters(timeout_min=_LONGEST_MIN)
        self._executor._throttling = 0.0  # of submissions, for the sake of a cluster's scheduler
        self._places: dict[str, int] = {}
        self._asked_at = -_AGAIN_S

    def start(self, works: Mapping[str, Work]) -> None:
        for name, work in works.items():
            assert name not in self._jobs, name
            place = min(set(range(self.limit)) - set(self._places.values()))
            launcher = OwnerProcess.of_this_process()
            cores = cores_of(place, self.limit, self._cores)
            gpu = gpu_of(place, gpu_names())
            # A Ctrl-C of the terminal goes to all of its processes: submitit would kill its task
            # within a second, before the last checkpoint.
            with _blocked(_OF_TERMINAL):
                job = self._executor.submit(run_task, work, launcher, cores, gpu)
            self._jobs[name], self._places[name] = job, place
            self._logs[name] = Path(job.paths.stderr)

    def take_ended(self) -> list[str]:
        ended = [name for name, job in self._jobs.items() if job.state != "RUNNING"]
        for name in ended:
            del self._jobs[name], self._places[name]
        return ended

    def stop(self) -> None:
        if time.monotonic() - self._asked_at < _AGAIN_S:
            return
        self._asked_at = time.monotonic()
        for job in self._jobs.values():
            # `job.cancel` sends SIGINT, after which submitit's process kills its task at once; it
            # passes SIGTERM on.
            with suppress(ProcessLookupError):
                if job.state == "RUNNING":
                    os.kill(int(job.job_id), signal.SIGTERM)

    def kill(self) -> None:
        for job in self._jobs.values():
            if job.state == "RUNNING":
                _kill_family(int(job.job_id))

    def close(self) -> None:
        """Remove the files that only submitit needs, also those of earlier launchers, whose jobs
        end with them. Slurm's jobs may go on."""
        for launch in launches(self._launch.parent):
            if not any(launch.glob(SUBMISSIONS)):
                remove_pickles(launch)


@dataclass(frozen=True)
class OwnerProcess:
    """A process of this machine; ``created`` (seconds since 1970) tells it from a later one with
    the same ``pid``."""

    pid: int
    created: float

    @classmethod
    def of_this_process(cls) -> OwnerProcess:
        process = psutil.Process()
        return cls(process.pid, process.create_time())

    @property
    def lives(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != "zombie"
        except psutil.NoSuchProcess:
            return False


def run_task(work: Work, launcher: OwnerProcess, cores: tuple[int, ...], gpu: str | None) -> None:
    """Do the ``work`` of submitit's process on some of the ``cores`` and on one ``gpu`` (None: on
    any). The process ends with the ``launcher``."""
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)  # until the work has something to save
    end_with(launcher)
    use_cores(cores)
    # submitit hides all GPUs from a job that has not asked for any.
    if gpu is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    work()


def end_with(launcher: OwnerProcess) -> None:
    """Have this process end in order when the launcher, or submitit's process between the two, has
    ended in any way; and at once where that takes too long."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and launcher.lives:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_S)
        os._exit(1)  # the workers of a run end with it

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def cores_of(place: int, places: int, cores: Sequence[int]) -> tuple[int, ...]:
    """Return the cores of one of the ``places``: equal shares, or one core for several places."""
    share = len(cores) // places
    if share == 0:
        return (cores[place % len(cores)],)
    return tuple(cores[place * share : (place + 1) * share])


def gpu_names() -> list[str]:
    """Return the names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name] or [""]
    return [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def gpu_of(place: int, names: Sequence[str]) -> str | None:
    """Return the name of a place's GPU, "" if all GPUs are hidden; None if there is none."""
    return names[place % len(names)] if names else None


@contextmanager
def _blocked(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals in this process, and for good in the processes that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_family(pid: int) -> None:
    """Kill a process and all of its descendants."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                member.kill()

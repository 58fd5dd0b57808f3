"""Jobs: functions that run in processes of this machine or on a Slurm cluster.

submitit starts and cancels them. What it lacks for training runs is here: local jobs end in order,
with a checkpoint, and always with their launcher; a terminal's Ctrl-C reaches only the launcher;
local jobs share the cores and GPUs; the state of Slurm jobs is read without Slurm's accounting,
which small clusters do not have; a later launcher takes over the Slurm jobs of an earlier one.

submitit passes functions as pickles. They are in a new folder of each launch that only its owner
can write to, and a launcher reads none of them, so that a folder from an unknown source cannot run
code.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import psutil

from sampleforge.config import ConfigError
from sampleforge.folder.atomic_file import write_atomically
from sampleforge.populations.jobs_config import JobsConfig
from sampleforge.runtime.processes import available_cores

Work = Callable[[], None]
"""The function of a job. It can be pickled, ends in order after SIGTERM (see `EndingInOrder`), and
writes its results into files."""
STOP_S = 45.0
"""Seconds that jobs have to end in order: a run writes its last checkpoint within 30 s."""
_AGAIN_S = 1.0
"""Seconds between two requests to end: one that comes while a job starts is lost."""
_LONGEST_MIN = 60 * 24 * 365
"""Time limit of a local job in minutes; submitit's default is 2."""
_QUEUE_S = 2.0
"""Seconds between two looks into Slurm's queue."""
_RESULT_S = 10.0
"""Seconds after which the result of a job that has left Slurm's queue counts as missing: shared
file systems show files late."""
_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)


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


def _new_launch(folder: Path) -> Path:
    """Return a new folder for the files of one launch; only the user can open it."""
    (folder / "jobs").mkdir(exist_ok=True)
    launch = folder / "jobs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    launch.mkdir(mode=0o700)
    return launch


def _remove_pickles(launch: Path) -> None:
    for pattern in ("*.pkl", ".submission_file_*"):
        for path in launch.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it has logs
        launch.rmdir()


# ---- on this machine ----


class LocalJobs:
    """Jobs in processes of this machine. Each has one of ``limit`` places (None: one per core) with
    its share of the cores, and the places take turns among the GPUs."""

    def __init__(self, folder: Path, limit: int | None, submitit: Any) -> None:
        self._cores = available_cores()
        self.limit = limit or len(self._cores)
        self._launch = _new_launch(folder)
        self._executor = submitit.LocalExecutor(self._launch)
        self._executor.update_parameters(timeout_min=_LONGEST_MIN)
        self._executor._throttling = 0.0  # of submissions, for the sake of a cluster's scheduler
        self._jobs: dict[str, Any] = {}
        self._places: dict[str, int] = {}
        self._logs: dict[str, Path] = {}
        self._asked_at = -_AGAIN_S

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def start(self, works: Mapping[str, Work]) -> None:
        for name, work in works.items():
            assert name not in self._jobs, name
            place = min(set(range(self.limit)) - set(self._places.values()))
            task = LocalTask(
                work,
                Owner.of_this_process(),
                cores_of(place, self.limit, self._cores),
                gpu_of(place, gpu_names()),
            )
            # A Ctrl-C of the terminal goes to all of its processes: submitit would kill its task
            # within a second, before the last checkpoint.
            with _blocked(_OF_TERMINAL):
                job = self._executor.submit(task)
            self._jobs[name], self._places[name] = job, place
            self._logs[name] = Path(job.paths.stderr)

    def take_ended(self) -> list[str]:
        ended = [name for name, job in self._jobs.items() if job.state != "RUNNING"]
        for name in ended:
            del self._jobs[name], self._places[name]
        return ended

    def log(self, name: str) -> Path | None:
        return self._logs.get(name)

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
        _remove_pickles(self._launch)


@dataclass(frozen=True)
class Owner:
    """A process of this machine; ``created`` (seconds since 1970) tells it from a later one with
    the same ``pid``."""

    pid: int
    created: float

    @classmethod
    def of_this_process(cls) -> Owner:
        process = psutil.Process()
        return cls(process.pid, process.create_time())

    @property
    def lives(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != "zombie"
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class LocalTask:
    """What submitit's process runs: ``work`` on some of the ``cores`` and on one ``gpu`` (None: on
    any), which ends with the ``launcher``."""

    work: Work
    launcher: Owner
    cores: tuple[int, ...]
    gpu: str | None

    def __call__(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until the work has something to save
        end_with(self.launcher)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        # submitit hides all GPUs from a job that has not asked for any.
        if self.gpu is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        self.work()


def end_with(launcher: Owner) -> None:
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


# ---- on a Slurm cluster ----


class SlurmJobs:
    """Jobs of a Slurm cluster, at most ``limit`` at a time; those that are started together are an
    array. ``options``: of sbatch.

    The file jobs.json has the ids of the jobs. A later launcher of the same folder takes over those
    that are still in the queue under the folder's own name, and cancels the others of that name.
    """

    def __init__(self, folder: Path, limit: int, options: Mapping[str, Any], submitit: Any) -> None:
        self.limit = limit
        self._submitit = submitit
        self._list = folder / "jobs.json"
        self._name = (
            f"sampleforge-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
        )
        self._launch = _new_launch(folder)
        try:
            self._executor = submitit.SlurmExecutor(self._launch)
            self._executor.update_parameters(**{"time": 60 * 24, **options, "job_name": self._name})
        except (RuntimeError, ValueError) as error:
            _remove_pickles(self._launch)
            raise ConfigError(f"--launcher slurm: {error}") from error
        self._gone_since: dict[str, float] = {}
        self._queued: frozenset[str] | None = None
        self._looked_at = -_QUEUE_S
        self._jobs: dict[str, Any] = dict(self._earlier(folder))
        self._logs = {name: Path(job.paths.stderr) for name, job in self._jobs.items()}

    def _earlier(self, folder: Path) -> Iterator[tuple[str, Any]]:
        """Return the jobs of an earlier launcher that are still in the queue."""
        queue = self._queue()
        if queue is None:
            raise ConfigError("--launcher slurm: squeue does not answer; is the cluster running?")
        known: set[str] = set()
        if self._list.is_file():
            for name, (job, launch) in json.loads(self._list.read_text()).items():
                if job in queue and re.fullmatch(r"[\w-]+", launch):
                    known.add(job)
                    yield name, self._submitit.SlurmJob(folder / "jobs" / launch, job)
        for job in queue - known:  # its launcher was killed before it wrote the id down
            subprocess.run(["scancel", job], check=False)

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def start(self, works: Mapping[str, Work]) -> None:
        if not works:
            return
        assert not self._jobs.keys() & works.keys(), sorted(works)
        jobs = self._executor.submit_array(list(works.values()))
        for name, job in zip(works, jobs, strict=True):
            self._jobs[name], self._logs[name] = job, Path(job.paths.stderr)
        self._write_list()
        self._queued = None  # it is older than these jobs

    def _write_list(self) -> None:
        listed = {name: (job.job_id, job.paths.folder.name) for name, job in self._jobs.items()}
        write_atomically(self._list, json.dumps(listed, indent=1).encode())

    def take_ended(self) -> list[str]:
        ended = [name for name, job in self._jobs.items() if self._has_ended(name, job)]
        for name in ended:
            del self._jobs[name]
            self._gone_since.pop(name, None)
        if ended:
            self._write_list()
        return ended

    def _has_ended(self, name: str, job: Any) -> bool:
        if job.paths.result_pickle.exists():
            return True
        queue = self._queue()
        if queue is None or job.job_id in queue:
            return False
        since = self._gone_since.setdefault(name, time.monotonic())
        return time.monotonic() - since > _RESULT_S

    def _queue(self) -> frozenset[str] | None:
        """Return the ids of this folder's jobs that wait or run, None if squeue does not answer."""
        now = time.monotonic()
        if self._queued is None or now - self._looked_at > _QUEUE_S:
            self._looked_at = now
            own = ("--user", getpass.getuser(), "--name", self._name)
            command = ["squeue", "--noheader", "--array", "--format=%i", *own]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30)
                self._queued = frozenset(done.stdout.split()) if done.returncode == 0 else None
            except (OSError, subprocess.TimeoutExpired):
                self._queued = None
        return self._queued

    def log(self, name: str) -> Path | None:
        return self._logs.get(name)

    def stop(self) -> None:
        """Cancel all jobs: Slurm sends SIGTERM, and SIGKILL after its KillWait."""
        for job in self._jobs.values():
            job.cancel(check=False)

    def kill(self) -> None:
        for job in self._jobs.values():
            subprocess.run(["scancel", "--signal=KILL", "--full", job.job_id], check=False)

    def close(self) -> None:
        if not self._jobs:
            _remove_pickles(self._launch)


# ---- in a job ----


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

"""Jobs on a Slurm cluster.

submitit submits and cancels them. What it lacks for training runs is here: the state of the jobs is
read without Slurm's accounting, which small clusters do not have; a later launcher takes over the
jobs of an earlier one; a job that is refused while others run is submitted again.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.runtime.files import write_atomically
from sampleforge.tools.jobs.jobs import (
    ENDS,
    Jobs,
    LaunchFailed,
    Work,
    launches,
    new_launch,
    remove_pickles,
    remove_unsent,
)

_QUEUE_S = 2.0
"""Seconds between two looks into Slurm's queue."""
_RESULT_S = 10.0
"""Seconds after which the result of a job that has left Slurm's queue counts as missing: shared
file systems show files late."""
_AGAIN_S = 30.0
"""Seconds after which jobs that Slurm has refused are submitted again."""
_PATIENCE_S = 1800.0
"""Seconds of refusals after which a command without a running job ends."""


class SlurmJobs(Jobs):
    """Jobs of a Slurm cluster, at most ``limit`` at a time; those that are started together are an
    array. ``options``: of sbatch.

    The file jobs.json has the ids of the jobs. A later launcher of the same folder takes over those
    that are still in the queue under the folder's own name, and cancels the others of that name.
    """

    def __init__(self, folder: Path, limit: int, options: Mapping[str, Any], submitit: Any) -> None:
        super().__init__(limit)
        self._submitit = submitit
        self._options = options
        self._list = folder / "jobs.json"
        self._name = (
            f"sampleforge-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
        )
        self._launch = new_launch(folder)
        try:
            self._executor = submitit.SlurmExecutor(self._launch)
            given = {"time": 60 * 24, **options, "job_name": self._name}
            self._executor.update_parameters(**given)
        except (RuntimeError, ValueError) as error:
            remove_pickles(self._launch)
            raise ConfigError(f"--launcher slurm: {error}") from error
        self._gone_since: dict[str, float] = {}
        self._queued: frozenset[str] | None = None
        self._looked_at = -_QUEUE_S
        self._again_at: float | None = None
        self._refused_since: float | None = None
        self._jobs = dict(self._earlier(folder))
        self._logs = {name: Path(job.paths.stderr) for name, job in self._jobs.items()}
        self._was_taken = bool(self._jobs)

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
        _cancel(queue - known)  # their launcher was killed before it wrote the ids down

    @property
    def free(self) -> int:
        waits = self._again_at is not None and time.monotonic() < self._again_at
        return 0 if waits else super().free

    def start(self, works: Mapping[str, Work]) -> None:
        if not works:
            return
        assert not self._jobs.keys() & works.keys(), sorted(works)
        errors = self._submitit.core.utils
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints what the error has, too
                jobs = self._executor.submit_array([partial(run_task, w) for w in works.values()])
        except (errors.FailedJobError, errors.FailedSubmissionError) as error:
            remove_unsent(self._launch)
            lines = str(error).split("\n")  # what sbatch printed; or what it should have printed
            is_sbatch = isinstance(error, errors.FailedJobError)
            self._queued = None
            known = {job.job_id for job in self._jobs.values()}
            _cancel((self._queue() or known) - known)  # Slurm may have taken some all the same
            self._refused(len(works), lines[-1 if is_sbatch else 0] or "it gave no reason")
            return
        self._again_at = self._refused_since = None
        self._was_taken = True
        for name, job in zip(works, jobs, strict=True):
            self._jobs[name], self._logs[name] = job, Path(job.paths.stderr)
        self._write_list()
        self._queued = None  # it is older than these jobs

    def _refused(self, count: int, reason: str) -> None:
        """Wait before jobs are submitted again, and say so once. Raises LaunchFailed if no job runs
        meanwhile and none was ever taken, or too long ago: then nothing says that one will be."""
        now = time.monotonic()
        since = self._refused_since = self._refused_since or now
        if not self._jobs and not (self._was_taken and now - since < _PATIENCE_S):
            given = " ".join(f"{name}={value}" for name, value in self._options.items())
            raise LaunchFailed(
                f"--launcher slurm: sbatch has refused the jobs ({reason}); correct "
                f"--slurm {given or 'KEY=VALUE ...'}, or give the same command later, which goes on"
            )
        if self._again_at is None:
            what = "a job, which waits" if count == 1 else f"{count} jobs, which wait"
            self._messages.append(
                f"sbatch has refused {what}: {reason}. They are submitted again every "
                f"{_AGAIN_S:.0f} s"
            )
        self._again_at = now + _AGAIN_S

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

    def stop(self) -> None:
        """Cancel all jobs: Slurm sends SIGTERM, and SIGKILL after its KillWait."""
        for job in self._jobs.values():
            job.cancel(check=False)

    def kill(self) -> None:
        for job in self._jobs.values():
            subprocess.run(["scancel", "--signal=KILL", "--full", job.job_id], check=False)

    def close(self) -> None:
        """Remove the files that only submitit needs of all launches, also earlier ones, none of
        whose jobs is running."""
        needed = {job.paths.folder.name for job in self._jobs.values()}
        for launch in launches(self._launch.parent):
            if launch.name not in needed:
                remove_pickles(launch)


def _cancel(jobs: Iterable[str]) -> None:
    for job in jobs:
        subprocess.run(["scancel", job], check=False)


def run_task(work: Work) -> None:
    """Do the ``work`` of submitit's process, whose own handlers of signals ignore a request to end,
    or raise an error in the middle of the work."""
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)  # until the work has something to save
    work()

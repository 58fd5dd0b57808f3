"""A cluster for tests: the programs of Slurm that the launcher calls, whose jobs are processes of
this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import REPO

SBATCH = """
if (cluster / "refusal").exists():
    sys.exit((cluster / "refusal").read_text())
script, text = sys.argv[-1], Path(sys.argv[-1]).read_text()
name = re.search(r"--job-name=(\\S+)", text)[1]
array = re.search(r"--array=0-(\\d+)", text)
first = 1000 * (1 + len([*cluster.glob("array-*")]))
(cluster / f"array-{first}").touch()
(cluster / "submitted").write_text(text)
for index in range(int(array[1]) + 1) if array else [None]:
    env = {**os.environ, "SLURM_JOB_ID": str(first + (index or 0)), "SLURM_PROCID": "0"}
    env |= {"SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    env |= {"SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "here"}
    job = str(first)
    if index is not None:
        env |= {"SLURM_ARRAY_JOB_ID": str(first), "SLURM_ARRAY_TASK_ID": str(index)}
        job += f"_{index}"
    process = subprocess.Popen(
        ["bash", script], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )
    (cluster / f"job-{job}").write_text(f"{process.pid} {name}")
print("Granted" if (cluster / "garbled").exists() else f"Submitted batch job {first}")
"""
SRUN = """
words = sys.argv[1:]
while words[0].startswith("--"):
    flag = words.pop(0)
    if flag in ("--output", "--error"):
        path = words.pop(0).replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
        path = path.replace("%A", os.environ.get("SLURM_ARRAY_JOB_ID", ""))
        path = path.replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", ""))
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(log, 1 if flag == "--output" else 2)
os.execvp(words[0], words)
"""
SQUEUE = """
for path in cluster.glob("job-*"):
    pid, name = path.read_text().split()
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if name == sys.argv[sys.argv.index("--name") + 1] and state != "Z":
        print(path.name.removeprefix("job-"))
"""
SCANCEL = """
number = signal.SIGKILL if "--signal=KILL" in sys.argv else signal.SIGTERM
for job in [word for word in sys.argv[1:] if not word.startswith("-")]:
    try:
        os.killpg(int((cluster / f"job-{job}").read_text().split()[0]), number)
    except OSError:
        pass
"""
HEAD = """#!{python}
import os, re, signal, subprocess, sys
from pathlib import Path
cluster = Path({folder!r})
"""


@dataclass(frozen=True)
class FakeSlurm:
    """The cluster whose files are in ``folder``."""

    folder: Path

    def refuse(self, text: str) -> None:
        """Have sbatch print this and fail, until `accept`."""
        (self.folder / "refusal").write_text(text)

    def accept(self) -> None:
        (self.folder / "refusal").unlink()

    def garble(self) -> None:
        """Have sbatch start jobs without saying their numbers, from now on."""
        (self.folder / "garbled").touch()

    def processes(self) -> list[psutil.Process]:
        """The processes of all jobs, without the shell of each, which Slurm spares too."""
        leaders = [int(path.read_text().split()[0]) for path in self.folder.glob("job-*")]
        found: list[psutil.Process] = []
        for pid in leaders:
            with suppress(psutil.NoSuchProcess):
                found += psutil.Process(pid).children(recursive=True)
        return found

    def reach_time_limit(self) -> None:
        """Send what sbatch was asked to send before the limit, to every process of the jobs."""
        assert "--signal=USR2@90" in (self.folder / "submitted").read_text()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR2)


@contextmanager
def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    """A cluster whose programs are the first in PATH; its jobs end with it."""
    folder.mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE, "scancel": SCANCEL}
    for name, text in programs.items():
        head = HEAD.format(python=sys.executable, folder=str(folder))
        (folder / name).write_text(head + text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    cluster = FakeSlurm(folder)
    try:
        yield cluster
    finally:
        for process in cluster.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

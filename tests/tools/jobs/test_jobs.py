"""Jobs on this machine: they share the cores, end in order, and always end with their launcher."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rich.text import Text

from sampleforge.config import ConfigError
from sampleforge.tools.jobs.jobs import JobsConfig, JobsScreen, LaunchFailed
from sampleforge.tools.jobs.local import LocalJobs, cores_of, gpu_names, gpu_of
from sampleforge.tools.jobs.loop import open_jobs, run_jobs
from tests.support.jobs import Fail, JobsAtOnce, WaitForEnd, Write

PATIENCE_S = 40.0


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.05)


def local_jobs(folder: Path, limit: int) -> LocalJobs:
    jobs = open_jobs(folder, JobsConfig(jobs=limit), most=limit)
    assert isinstance(jobs, LocalJobs)
    return jobs


@pytest.mark.multiprocess
def test_jobs_run_and_are_reported_when_they_have_ended(tmp_path: Path) -> None:
    jobs = local_jobs(tmp_path, 2)
    jobs.start({"a": Write(tmp_path / "a"), "b": Fail()})
    assert jobs.running == {"a", "b"}
    ended: list[str] = []
    until(lambda: ended.extend(jobs.take_ended()) or len(ended) == 2)  # type: ignore[func-returns-value]
    assert set(ended) == {"a", "b"} and not jobs.running
    assert set(map(int, (tmp_path / "a").read_text().split())) <= os.sched_getaffinity(0)
    log = jobs.log("b")
    assert log is not None and "what the job failed with" in log.read_text()
    jobs.close()
    assert not list(tmp_path.rglob("*.pkl"))


@pytest.mark.multiprocess
def test_jobs_end_in_order_when_they_are_stopped(tmp_path: Path) -> None:
    jobs = local_jobs(tmp_path, 1)
    jobs.start({"a": WaitForEnd(tmp_path / "a")})
    until((tmp_path / "a.pid").exists)
    until(lambda: jobs.stop() or jobs.take_ended())  # type: ignore[func-returns-value]
    assert (tmp_path / "a").read_text() == "in order"
    jobs.close()


@pytest.mark.multiprocess
def test_killed_jobs_are_gone_with_their_processes(tmp_path: Path) -> None:
    jobs = local_jobs(tmp_path, 1)
    jobs.start({"a": WaitForEnd(tmp_path / "a")})
    until((tmp_path / "a.pid").exists)
    pid = int((tmp_path / "a.pid").read_text())
    jobs.kill()
    until(jobs.take_ended)
    until(lambda: not psutil.pid_exists(pid))
    assert not (tmp_path / "a").exists()
    jobs.close()


LAUNCHER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from sampleforge.tools.jobs.loop import open_jobs
from sampleforge.tools.jobs.jobs import JobsConfig
from tests.support.jobs import WaitForEnd
folder = Path(sys.argv[1])
open_jobs(folder, JobsConfig(jobs=1), most=1).start({"a": WaitForEnd(folder / "a")})
(folder / "started").touch()
time.sleep(600)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_jobs_end_in_order_with_a_launcher_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """SIGINT goes to the whole process group, as from a terminal."""
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as launcher:
        until((tmp_path / "a.pid").exists)
        until((tmp_path / "started").exists)
        pid = int((tmp_path / "a.pid").read_text())
        if number == signal.SIGKILL:
            launcher.kill()
        else:
            os.killpg(launcher.pid, number)
        launcher.wait()
    until((tmp_path / "a").exists)
    until(lambda: not psutil.pid_exists(pid))
    assert list(tmp_path.rglob("*.pkl")), "what submitit has passed to the job"
    local_jobs(tmp_path, 1).close()
    assert not list(tmp_path.rglob("*.pkl"))


def test_the_files_of_jobs_that_slurm_may_still_run_stay(tmp_path: Path) -> None:
    launch = tmp_path / "jobs" / "earlier"
    launch.mkdir(parents=True)
    for name in ("1_submitted.pkl", ".submission_file_1.sh"):
        (launch / name).touch()
    local_jobs(tmp_path, 1).close()
    assert len(list(launch.iterdir())) == 2


def test_jobs_whose_folder_was_removed_are_closed(tmp_path: Path) -> None:
    """The command ends with its own error."""
    jobs = local_jobs(tmp_path, 1)
    shutil.rmtree(tmp_path / "jobs")
    jobs.close()


@pytest.mark.parametrize(
    ("places", "cores", "shares"),
    [
        (1, [0, 1], [(0, 1)]),
        (2, [0, 1, 2, 3], [(0, 1), (2, 3)]),
        (3, [0, 1, 4, 5], [(0,), (1,), (4,)]),
        (4, [2, 5], [(2,), (5,), (2,), (5,)]),
    ],
)
def test_places_share_the_cores(
    places: int, cores: list[int], shares: list[tuple[int, ...]]
) -> None:
    assert [cores_of(place, places, cores) for place in range(places)] == shares


@pytest.mark.parametrize(
    ("visible", "names"), [("2,3", ["2", "3"]), ("GPU-a", ["GPU-a"]), ("", [""])]
)
def test_places_take_turns_among_the_visible_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names() == names
    assert [gpu_of(place, names) for place in range(len(names) + 1)] == [*names, names[0]]


def test_without_gpus_none_is_chosen() -> None:
    assert gpu_of(0, []) is None


@pytest.mark.parametrize(
    "wrong", [{"slurm": {"partition": "gpu"}}, {"leave_jobs": True}, {"jobs": 0}]
)
def test_flags_of_jobs_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        JobsConfig(**wrong)  # type: ignore[arg-type]


class DiskIsFull:
    """A sweep or a population that cannot write."""

    done = False

    def step(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "lineage.jsonl")


def test_a_full_disk_ends_the_command_with_the_reason_and_what_helps() -> None:
    with pytest.raises(LaunchFailed, match=r"No space left on device \(lineage.*the same command"):
        run_jobs(DiskIsFull(), JobsAtOnce(), JobsScreen(Text, list), leave=False)

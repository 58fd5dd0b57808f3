"""Jobs of a cluster: what Slurm refuses, ends or leaves to a later launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.text import Text

from sampleforge.tools.jobs import slurm
from sampleforge.tools.jobs.jobs import Jobs, JobsConfig, JobsScreen, LaunchFailed
from sampleforge.tools.jobs.loop import end_jobs, open_jobs, run_jobs
from sampleforge.tools.jobs.training_job import Outcome, TrainingJob, read_outcome
from sampleforge.topologies.config import AppoConfig
from tests.support.jobs import WaitForEnd, Write
from tests.support.runs import last_report
from tests.support.slurm import FakeSlurm, fake_slurm

pytestmark = pytest.mark.multiprocess(timeout=120)
PATIENCE_S = 60.0
REFUSAL = (
    "sbatch: error: invalid partition specified: nosuch\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
)


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    monkeypatch.setattr(slurm, "_QUEUE_S", 0.0)
    with fake_slurm(tmp_path / "cluster", monkeypatch) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "sweep"
    path.mkdir()
    return path


def slurm_jobs(folder: Path, limit: int = 2) -> Jobs:
    config = JobsConfig(launcher="slurm", jobs=limit, slurm={"partition": "nosuch"})
    return open_jobs(folder, config, most=limit)


def pickles(folder: Path) -> list[Path]:
    return [*folder.rglob("*.pkl"), *folder.rglob(".submission_file_*")]


def test_a_run_that_reaches_its_time_limit_is_interrupted_and_goes_on(
    cluster: FakeSlurm, folder: Path
) -> None:
    """Slurm signals the workers, too."""
    run = folder / "run"
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(run),
        train_for_env_steps=10**9,
        num_workers=1,
        num_envs_per_worker=8,
        report_interval=0.5,
        quiet=True,
    )
    jobs = slurm_jobs(folder)
    jobs.start({"a": TrainingJob(config)})
    until(lambda: last_report(run).get("updates", 0) > 0)
    cluster.reach_time_limit()
    until(jobs.take_ended)
    log = jobs.log("a")
    assert log is not None and "resource_tracker" not in log.read_text()
    assert read_outcome(run) == Outcome("interrupted"), log.read_text()
    assert "after the interrupt" not in (run / "log.txt").read_text(), "no worker was ended by it"
    assert list((run / "checkpoints").glob("*.safetensors"))
    jobs.start({"a": TrainingJob(replace(config, train_for_env_steps=1))})
    until(jobs.take_ended)
    assert read_outcome(run) == Outcome("finished")
    jobs.close()


def test_a_refusal_ends_the_command_with_its_reason_if_no_job_runs(
    cluster: FakeSlurm, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = slurm_jobs(folder)
    cluster.refuse(REFUSAL)
    with pytest.raises(LaunchFailed, match=r"Invalid partition name.*--slurm partition=nosuch"):
        jobs.start({"a": Write(folder / "a"), "b": Write(folder / "b")})
    assert not jobs.running
    jobs.close()
    assert not pickles(folder)
    assert "sbatch" not in capfd.readouterr().err, "the error has it"


def test_what_is_refused_while_others_run_is_started_later(
    cluster: FakeSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_AGAIN_S", 1000.0)
    jobs = slurm_jobs(folder)
    jobs.start({"a": WaitForEnd(folder / "a")})
    cluster.refuse("sbatch: error: Socket timed out on send/recv operation")
    jobs.start({"b": WaitForEnd(folder / "b")})
    assert jobs.running == {"a"}
    assert jobs.free == 0, "for a while"
    monkeypatch.setattr(slurm, "_AGAIN_S", 0.0)
    jobs.start({"b": WaitForEnd(folder / "b")})
    assert jobs.running == {"a"} and jobs.free == 1
    (message,) = jobs.take_messages()
    assert "refused a job, which waits: sbatch: error: Socket timed out" in message
    cluster.accept()
    jobs.start({"b": WaitForEnd(folder / "b")})
    assert jobs.running == {"a", "b"} and not jobs.take_messages()
    until(lambda: (folder / "a.pid").exists() and (folder / "b.pid").exists())
    end_jobs(jobs)
    assert (folder / "a").read_text() == (folder / "b").read_text() == "in order"
    jobs.close()
    assert not pickles(folder)


def test_a_refusal_is_waited_out_once_a_job_was_taken_but_not_for_ever(
    cluster: FakeSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = slurm_jobs(folder)
    jobs.start({"a": Write(folder / "a")})
    until(jobs.take_ended)
    cluster.refuse("sbatch: error: Unable to contact slurm controller")
    jobs.start({"b": Write(folder / "b")})
    assert not jobs.running and jobs.free == 0 and len(jobs.take_messages()) == 1
    monkeypatch.setattr(slurm, "_PATIENCE_S", 0.0)
    with pytest.raises(LaunchFailed, match="Unable to contact slurm controller"):
        jobs.start({"b": Write(folder / "b")})
    jobs.close()


def test_jobs_whose_numbers_sbatch_does_not_say_are_cancelled(
    cluster: FakeSlurm, folder: Path
) -> None:
    jobs = slurm_jobs(folder)
    jobs.start({"a": WaitForEnd(folder / "a")})
    until((folder / "a.pid").exists)
    cluster.garble()
    jobs.start({"b": WaitForEnd(folder / "b")})
    (started,) = cluster.folder.glob("job-2*")
    shell = int(started.read_text().split()[0])
    until(lambda: not psutil.pid_exists(shell) or psutil.Process(shell).status() == "zombie")
    assert jobs.running == {"a"}
    end_jobs(jobs)
    jobs.close()


def test_what_jobs_say_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Once:
        done = False

        def step(self) -> None:
            self.done = True
            jobs._messages.append("sbatch has refused a job")

    jobs = Jobs(1)
    run_jobs(Once(), jobs, JobsScreen(Text, list), leave=False)
    assert capsys.readouterr().out == "sbatch has refused a job\n"


def test_the_pickles_of_jobs_that_were_taken_over_are_removed(
    cluster: FakeSlurm, folder: Path
) -> None:
    """Also of those that end between two launchers; not of those that run."""
    names = ("a", "b", "c")
    first = slurm_jobs(folder, limit=3)
    for name in names:
        first.start({name: WaitForEnd(folder / name)})
    until(lambda: all((folder / f"{name}.pid").exists() for name in names))
    first.close()  # it leaves its jobs
    assert len(list(folder.rglob("*_submitted.pkl"))) == 3
    second = slurm_jobs(folder, limit=3)
    assert second.running == set(names)
    second.close()
    assert len(list(folder.rglob("*_submitted.pkl"))) == 3
    assert len(list((folder / "jobs").iterdir())) == 1, "it has started none"
    third = slurm_jobs(folder, limit=3)
    end_jobs(third)
    third.close()
    assert not pickles(folder)


def test_a_local_launcher_leaves_the_pickles_of_jobs_of_which_others_were_refused(
    cluster: FakeSlurm, folder: Path
) -> None:
    jobs = slurm_jobs(folder)
    jobs.start({"a": WaitForEnd(folder / "a")})
    until((folder / "a.pid").exists)
    cluster.refuse("sbatch: error: Socket timed out on send/recv operation")
    jobs.start({"b": WaitForEnd(folder / "b")})
    open_jobs(folder, JobsConfig(jobs=1), most=1).close()
    assert len(list(folder.rglob("*_submitted.pkl"))) == 1
    end_jobs(jobs)
    jobs.close()
    assert not pickles(folder)


def test_a_link_among_the_launches_is_not_followed(
    cluster: FakeSlurm, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.pkl").touch()
    jobs = slurm_jobs(folder)
    (folder / "jobs" / "link").symlink_to(other)
    jobs.close()
    assert (other / "mine.pkl").exists()

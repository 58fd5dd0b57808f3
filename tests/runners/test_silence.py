"""Workers that stand still: the user is told which, and no limit of the run is missed for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import psutil
import pytest

from sampleforge.api import train as train_here
from sampleforge.models.config import ModelConfig
from sampleforge.runners import silence
from sampleforge.runners.silence import StoppedWorkers, Unanswered
from sampleforge.runtime.watch import seconds_since
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig, MarwilConfig
from sampleforge.workers.config import answer_timeout
from tests.support.callbacks import HangsInTheLearner
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.slow_learning import START_S
from tests.support.variants import slow


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    """A process that waits."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield psutil.Process(process.pid)
    process.kill()
    process.communicate()


def wait_until(child: psutil.Process, *, stopped: bool) -> None:
    give_up_at = monotonic() + 30
    while (child.status() == psutil.STATUS_STOPPED) is not stopped:
        assert monotonic() < give_up_at


class Clock:
    """Ages that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, at: float) -> float:
        return self.seconds


def test_a_stopped_worker_is_named_once_after_ten_seconds(
    child: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LOOK_S", 0.0)
    told, clock = list[str](), Clock()
    watch, pids = StoppedWorkers(told.append, clock, lambda: False), {"learner": child.pid}
    watch.look(pids)
    assert not watch and "learner" not in watch
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(child, stopped=True)
    watch.look(pids)
    clock.seconds = 9.0
    watch.look(pids)
    assert watch and "learner" in watch and not told
    clock.seconds = 10.0
    for _ in range(3):
        watch.look(pids)
    (text,) = told
    assert text.startswith("learner has been stopped for 10 s")
    assert f"`kill -CONT {child.pid}` continues it" in text
    os.kill(child.pid, signal.SIGCONT)
    wait_until(child, stopped=False)
    watch.look(pids)
    assert not watch


def test_a_stopped_worker_is_continued_once_the_training_is_over(
    child: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LOOK_S", 0.0)
    told = list[str]()
    watch = StoppedWorkers(told.append, seconds_since, lambda: True)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(child, stopped=True)
    watch.look({"rank 1": child.pid})
    wait_until(child, stopped=False)
    assert told == ["rank 1 was stopped; it is continued, because the training is over"]


def test_a_process_that_has_ended_is_not_stopped(child: psutil.Process) -> None:
    told = list[str]()
    watch = StoppedWorkers(told.append, seconds_since, lambda: True)
    child.kill()
    child.wait()
    watch.look({"actor 0": child.pid})
    assert not watch and not told


def test_a_worker_that_does_not_answer_is_named_ever_more_rarely() -> None:
    told = list[str]()
    watch = Unanswered(told.append, seconds_since, lambda: False)
    for waited in (1.0, 9.9, 10.0, 11.0, 19.0):
        watch.look("learner", waited, 300.0)
    assert told == [
        "learner has not answered for 10 s: it is busy with one update, or hangs (it is replaced "
        "after 300 s, or soon after the training is over)"
    ]
    for waited in (12.0, 20.0, 12.0, 39.0):
        watch.look("learner", waited, 300.0)
    assert len(told) == 2 and "20 s" in told[1]
    watch.look("learner 1", 10.0, 3600.0, starts=True)
    assert told[2].startswith(
        "learner 1 has been starting for 10 s: it reads its data, compiles, or hangs"
    )


@pytest.mark.parametrize(
    "kind, longest, late",
    [("metrics", 0.0, 30.0), ("metrics", 70.0, 140.0), ("finish", 5.0, 30.0), ("save", 0.0, 120.0)],
)
def test_an_answer_after_the_end_of_the_training_is_late_if_it_takes_unusually_long(
    kind: str, longest: float, late: float
) -> None:
    clock, is_over = Clock(), False
    watch = Unanswered(lambda text: None, clock, lambda: is_over)
    clock.seconds = longest
    watch.answered("learner", monotonic())
    clock.seconds = 1000.0
    asked = monotonic()
    assert not watch.is_late("learner", kind, asked), "--learner-timeout holds until then"
    is_over, clock.seconds = True, late
    assert not watch.is_late("learner", kind, asked)
    clock.seconds = late + 1.0
    assert watch.is_late("learner", kind, asked)


@pytest.mark.multiprocess(timeout=120)
def test_a_time_limit_is_kept_although_the_learner_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a callback of an update, for good: --learner-timeout would be 300 s."""
    monkeypatch.setattr(silence, "LATE_S", 1.0)
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(tmp_path / "run"),
        num_workers=1,
        num_envs_per_worker=8,
        async_rl=True,
        quiet=True,
        report_interval=0.3,
        train_for_seconds=4.0,
    )
    result = train_here(config, callbacks=[HangsInTheLearner(tmp_path / "hung")])
    assert result.summary["status"] == "finished" and result.summary["wall_s"] < 30
    assert result.summary["restarts"] == 1
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "learner did not answer 'metrics'" in log and "it is restarted" in log
    assert list(tmp_path.glob("run/checkpoints/*.safetensors"))


def test_the_learner_timeout_is_that_of_the_only_learner_too() -> None:
    assert answer_timeout(MarwilConfig(learner_timeout=20.0)) == 20.0
    for config in (AppoConfig, ApexConfig):
        assert answer_timeout(config(learner_timeout=20.0)) == 20.0
        assert answer_timeout(config(learner_timeout=20.0, num_learners=2)) == 300.0
        assert answer_timeout(config(learner_timeout=200.0, num_learners=2)) == 400.0
    assert answer_timeout(DdppoConfig()) == answer_timeout(MarwilConfig()) == 300.0


@pytest.mark.multiprocess(timeout=120)
def test_the_start_of_a_learner_does_not_count_as_its_answer(tmp_path: Path) -> None:
    """Such as that of one that reads a large dataset."""
    config = AppoConfig(
        env="CartPole-v1",
        run_dir=str(tmp_path / "run"),
        num_workers=1,
        num_envs_per_worker=8,
        async_rl=True,
        quiet=True,
        report_interval=0.2,
        learner_timeout=0.75 * START_S,
        model=ModelConfig(encoder="tests.support.slow_learning:StartsSlowly"),
        batch_size=512,
        train_for_env_steps=4000,
    )
    result = train_here(config)
    assert result.summary["status"] == "finished" and result.summary["restarts"] == 0
    assert result.summary["updates"] > 0


@pytest.mark.multiprocess(timeout=120)
def test_the_only_learner_that_is_stopped_is_replaced_after_the_learner_timeout(
    start_cli: StartCli, tmp_path: Path
) -> None:
    process = start_cli(*train("CartPole-v1", "--learner-timeout", "2"))
    until_trained(process, tmp_path / "run")
    worker(process, "sampleforge: learner").send_signal(signal.SIGSTOP)
    until(lambda: last_report(tmp_path / "run").get("restarts_learner", 0) == 1, process)
    updates = last_report(tmp_path / "run")["updates"]
    until(lambda: last_report(tmp_path / "run")["updates"] > updates, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "learner did not answer 'metrics' within 2 s" in stderr


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize("algo, title", [("appo", "learner"), slow("ddppo", "rank 1")])
def test_a_time_limit_is_kept_although_a_worker_was_stopped(
    start_cli: StartCli, tmp_path: Path, algo: str, title: str
) -> None:
    command = train("CartPole-v1", "--train-for-seconds", "6", algo=algo)
    if algo == "ddppo":
        at = command.index("--num-workers")
        command[at : at + 2] = ["--num-ranks", "2"]
    process = start_cli(*command)
    until_trained(process, tmp_path / "run")
    worker(process, f"sampleforge: {title}").send_signal(signal.SIGSTOP)
    _, stderr = process.communicate(timeout=40)
    assert process.returncode == 0, stderr
    assert f"{title} was stopped; it is continued, because the training is over" in stderr
    ended = summary(tmp_path / "run")
    assert ended["status"] == "finished" and ended["wall_s"] < 15
    assert list((tmp_path / "run").glob("checkpoints/*.safetensors"))

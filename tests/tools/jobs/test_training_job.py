"""A training run as a job: its outcome, however it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sampleforge.config import ConfigError
from sampleforge.env.probe import EnvProbeError
from sampleforge.populations.lineage import read
from sampleforge.run.callback import Callback
from sampleforge.run.session import Session
from sampleforge.runtime.folder_lock import lock_folder
from sampleforge.tools.jobs.training_job import (
    Outcome,
    TrainingJob,
    ask_to_stop,
    only_job,
    read_outcome,
    train,
)
from sampleforge.topologies.config import AppoConfig
from tests.support.runs import summary


def small(tmp_path: Path) -> AppoConfig:
    return AppoConfig(
        env="CartPole-v1",
        run_dir=str(tmp_path / "run"),
        serial=True,
        train_for_env_steps=2000,
        num_workers=1,
        num_envs_per_worker=8,
    )


def test_a_run_that_reaches_its_stop_condition_is_finished(tmp_path: Path) -> None:
    TrainingJob(small(tmp_path))()
    assert read_outcome(tmp_path / "run") == Outcome("finished")


def test_a_run_that_is_asked_to_stop_has_a_checkpoint(tmp_path: Path) -> None:
    ask_to_stop(tmp_path / "run")
    TrainingJob(replace(small(tmp_path), train_for_env_steps=10**9))()
    assert read_outcome(tmp_path / "run") == Outcome("stopped")
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def test_a_job_waits_for_an_earlier_one_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a killed launcher has left, and that still writes its last checkpoint: it has the
    folder of the run, in which another one cannot begin."""
    waits: list[float] = []

    def end_of_the_earlier(seconds: float) -> None:
        waits.append(seconds)
        earlier.close()

    with ExitStack() as earlier:
        earlier.enter_context(only_job(tmp_path / "run" / "job.lock", "the run"))
        earlier.callback(os.close, lock_folder(tmp_path / "run", "--run-dir"))
        monkeypatch.setattr("sampleforge.tools.jobs.training_job.time.sleep", end_of_the_earlier)
        TrainingJob(small(tmp_path))()
    assert waits and read_outcome(tmp_path / "run") == Outcome("finished")


def test_an_earlier_job_that_does_not_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sampleforge.tools.jobs.training_job.PREDECESSOR_S", 0.0)
    with (
        only_job(tmp_path / "run" / "job.lock", "the run"),
        pytest.raises(ConfigError, match=r"another job of the run in .*run has not ended"),
    ):
        TrainingJob(small(tmp_path))()
    assert read_outcome(tmp_path / "run") is None, "it counts as killed, and is started again"


@pytest.fixture
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose handler raises an error, as submitit's of SIGUSR2."""

    def fail(*_: object) -> None:
        raise RuntimeError("Job not requeued because: timed-out and not checkpointable.")

    before = signal.signal(request.param, fail)
    yield request.param
    assert signal.signal(request.param, before) is fail


ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], indirect=True)


@dataclass
class End(Callback):
    number: signal.Signals

    def on_report(self, session: Session, report: Any) -> None:
        os.kill(os.getpid(), self.number)


@ENDS
def test_a_signal_ends_a_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    config = replace(small(tmp_path), train_for_env_steps=10**9, report_interval=1.0)
    assert train(config, [End(number)]) == "interrupted"
    assert summary(tmp_path / "run")["status"] == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


@ENDS
def test_a_signal_that_ends_the_probe_of_the_environment_too_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def ended(session: Session) -> None:
        os.kill(os.getpid(), number)
        raise EnvProbeError("CartPole-v1 ended its process in the probe, with a signal")

    monkeypatch.setattr(Session, "open", ended)
    assert train(small(tmp_path), []) == "interrupted"


def test_a_population_in_a_job_has_rounds(tmp_path: Path) -> None:
    """As in a trial of a sweep, whose config has --pbt."""
    rounds: dict[str, Any] = {"pbt": True, "num_policies": 2, "pbt_start": 500, "pbt_period": 500}
    config = replace(small(tmp_path), num_envs_per_worker=4, rollout=32, batch_size=128, **rounds)
    assert train(config, []) == "finished"
    assert {event["event"] for event in read(tmp_path / "run" / "lineage.jsonl")} >= {"score"}


def test_a_job_follows_its_schedule_and_has_its_seed(tmp_path: Path) -> None:
    changes = [{"env_steps": 0, "hyperparameters": {"learning_rate": 1e-5}}]
    schedule = {"algo": "appo", "seed": 7, "env_steps": 600, "changes": changes}
    (tmp_path / "s.json").write_text(json.dumps(schedule))
    config = replace(small(tmp_path), train_for_env_steps=10**9, schedule=str(tmp_path / "s.json"))
    assert train(config, []) == "finished"
    found = summary(tmp_path / "run")
    assert found["seed"] == 7 and found["env_steps"] < 10**6, "it ends with the schedule"


@pytest.mark.long
def test_an_error_is_the_outcome(tmp_path: Path) -> None:
    config = replace(small(tmp_path), env="NoSuchEnv-v1")
    with pytest.raises((ConfigError, EnvProbeError)):
        TrainingJob(config)()
    outcome = read_outcome(tmp_path / "run")
    assert outcome is not None and outcome.status == "failed"
    assert outcome.error is not None and "NoSuchEnv" in outcome.error

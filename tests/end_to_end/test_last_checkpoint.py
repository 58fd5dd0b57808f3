"""The last checkpoint of a run that ends early: after Ctrl-C in a long update, and after a failure
that has left the learner well."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train as train_in_process
from sampleforge.run.callback import Callback
from sampleforge.run.checkpoints import PolicyCheckpoints
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.session import Session
from sampleforge.topologies.config import AppoConfig
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, train, until, until_trained, worker

WITHIN_S = 20.0
"""5 s are promised; beside other tests on a busy machine everything takes longer."""
SLOW = (
    *("--model.encoder", "tests.support.slow_learning:SlowEncoder"),
    *("--num-epochs", "1", "--rollout", "16", "--num-batches-to-accumulate", "1"),
)

pytestmark = pytest.mark.multiprocess(timeout=120)


def checkpoint_of(run: Path) -> int:
    """Env steps of the newest checkpoint, which is valid."""
    problems: list[str] = []
    found = CheckpointStore(run / "checkpoints", 1).load(log=problems.append)
    assert found is not None and problems == []
    return found[1].env_steps


def test_ctrl_c_in_the_middle_of_a_long_update_leaves_a_checkpoint(
    start_cli: StartCli, tmp_path: Path
) -> None:
    """Reports ask the learner for metrics all the time, and wait for its updates."""
    process = start_cli(*train("CartPole-v1", *SLOW[:6]))
    until_trained(process, tmp_path / "run")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130, (stdout, stderr)
    ended, report = summary(tmp_path / "run"), last_report(tmp_path / "run")
    assert ended["status"] == "interrupted"
    assert (report["env_steps"], report["episodes"]) == (ended["env_steps"], ended["episodes"])
    assert checkpoint_of(tmp_path / "run") == ended["env_steps"] > 0


def test_ctrl_c_while_a_checkpoint_is_being_asked_for_does_not_wait_for_minutes(
    start_cli: StartCli, tmp_path: Path
) -> None:
    """A learner that was stopped is woken up for its checkpoint."""
    process = start_cli(*train("CartPole-v1", "--checkpoint-interval", "1"))
    until_trained(process, tmp_path / "run")
    worker(process, "sampleforge: learner").send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130, (stdout, stderr)
    assert checkpoint_of(tmp_path / "run") > 0


@pytest.mark.parametrize("algo", ["appo", "ddppo", "apex"])
def test_a_run_that_fails_saves_what_its_learner_has_learned(
    start_cli: StartCli, tmp_path: Path, algo: str
) -> None:
    run = tmp_path / "run"
    more = ["--max-worker-restarts", "0"]
    victim = "actor 0"
    if algo == "ddppo":
        more, victim = ["--num-ranks", "2", "--max-rank-restarts", "0"], "rank 1"
    command = train("CartPole-v1", *more, algo=algo)
    if algo == "ddppo":
        at = command.index("--num-workers")
        del command[at : at + 2]
    if algo == "apex":
        command += ["--learning-starts", "500", "--save-replay"]
    process = start_cli(*command)
    until_trained(process, run)
    worker(process, f"sampleforge: {victim}").kill()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert f"{victim} was ended by signal SIGKILL" in stderr.rstrip().splitlines()[-1]
    assert summary(run)["status"] == "failed"
    assert checkpoint_of(run) > 0


def test_environments_that_fail_too_often_do_not_cost_the_checkpoint(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    env = ("tests.support.envs:FlakyEnv", "--env-kwargs", "every=500", "length=400")
    process = start_cli(*train(*env, "--max-worker-restarts", "0", "--rollout", "8"))
    _, stderr = process.communicate(timeout=3 * WITHIN_S)
    assert process.returncode == 1
    assert "deliberate: fault" in stderr
    assert checkpoint_of(run) > 0


def test_a_stopped_fork_server_keeps_neither_a_restart_nor_the_end_of_a_run_waiting(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start_cli(*train("CartPole-v1", "--max-worker-restarts", "5"))
    until_trained(process, run)
    server = worker(process, "multiprocessing.forkserver")
    server.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130, (stdout, stderr)
    assert checkpoint_of(run) > 0


def test_two_interrupts_end_a_run_at_once_whatever_is_stopped(
    start_cli: StartCli, tmp_path: Path
) -> None:
    process = start_cli(*train("CartPole-v1"))
    until_trained(process, tmp_path / "run")
    for title in ("multiprocessing.forkserver", "sampleforge: learner", "sampleforge: actor 0"):
        worker(process, title).send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130


def test_a_worker_is_replaced_although_the_fork_server_was_stopped(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start_cli(*train("CartPole-v1", "--env-timeout", "6"))
    until_trained(process, run)
    before = worker(process, "sampleforge: actor 0")
    worker(process, "multiprocessing.forkserver").send_signal(signal.SIGSTOP)
    before.kill()
    until(lambda: worker(process, "sampleforge: actor 0").pid != before.pid, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 143
    assert summary(run)["restarts"] == summary(run)["restarts_by_role"]["actor"] == 1


@pytest.mark.parametrize("learned", [False, True])
def test_a_learner_that_cannot_answer_in_time_is_an_error_only_if_it_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: bool
) -> None:
    """One that compiles at its start is not done with it after 30 s on a busy machine."""
    said: list[str] = []

    class Interrupts(Callback):
        def on_poll(self, session: Session) -> None:
            if not learned or session.graph.counters.total("updates"):
                session.interrupt()

        def on_message(self, session: Session, message: Any) -> None:
            said.append(message.text)

    def save(self: PolicyCheckpoints, session: Session) -> int:
        raise TimeoutError("learner did not write the last checkpoint within 30 s")

    monkeypatch.setattr(PolicyCheckpoints, "save", save)
    more: dict[str, Any] = {"rollout": 16, "num_epochs": 1, "num_envs_per_worker": 4}
    config = AppoConfig(
        env="CartPole-v1", serial=True, batch_size=64, run_dir=str(tmp_path / "run"), **more
    )
    if learned:
        with pytest.raises(TimeoutError, match="within 30 s"):
            train_in_process(config, [Interrupts()])
        return
    assert train_in_process(config, [Interrupts()]).summary["status"] == "interrupted"
    assert any("nothing was learned since the start" in text for text in said)

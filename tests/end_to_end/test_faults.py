"""What is promised when something breaks: the run ends in time, says why last, leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.processes import RunCli, StartCli, session_members
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.variants import slow

FAKES = "tests.support.envs"
STUCK = """
import re
import gymnasium as gym

class Stuck(gym.Wrapper):
    '''Drops a file where it runs; after `after` steps it hangs in C and never lets go of the lock
    of the interpreter.'''

    def __init__(self, after=10**9):
        super().__init__(gym.make("CartPole-v1"))
        self.left = after
        open("dropped.txt", "w").close()

    def step(self, action):
        self.left -= 1
        if self.left <= 0:
            open("stuck.txt", "w").close()
            re.match("(a+)+$", "a" * 60 + "b")
        return super().step(action)
"""
HELD = """
import pathlib
import time
import setproctitle
import torch
import sampleforge

HERE = pathlib.Path(__file__).parent

class Polled(sampleforge.Callback):
    def on_poll(self, session):
        (HERE / "polled.txt").touch()

class Held(torch.nn.Module):
    '''Drops held.txt where the learner makes it, and waits there for go.txt.'''

    def __init__(self, observations, config):
        super().__init__()
        self.out_features = 8
        self.layer = torch.nn.Linear(observations["obs"].shape[0], self.out_features)
        if setproctitle.getproctitle() == "sampleforge: learner":
            (HERE / "held.txt").touch()
            while not (HERE / "go.txt").exists():
                time.sleep(0.01)

    def forward(self, obs):
        return self.layer(obs["obs"])
"""
WITHIN_S = 20.0
"""5 s are promised for every end; beside other tests on a busy machine everything takes longer.
What would hang would hang for minutes."""

pytestmark = pytest.mark.multiprocess(timeout=120)


def last_line(text: str) -> str:
    return text.rstrip().splitlines()[-1]


@pytest.mark.parametrize(
    ("env", "limit", "cause"),
    [
        ("RaisingEnv", "60", "ValueError: deliberate: the factory raises"),
        ("HangingEnv", "2", "--env-timeout"),
    ],
)
def test_a_factory_that_raises_or_sleeps_ends_the_command_at_once(
    run_cli: RunCli, tmp_path: Path, env: str, limit: str, cause: str
) -> None:
    done = run_cli(*train(f"{FAKES}:{env}", "--env-timeout", limit), timeout=2 * WITHIN_S)
    assert done.returncode == 1
    assert cause in last_line(done.stderr)
    written = sorted(path.name for path in tmp_path.rglob("*"))
    assert written == ["log.txt", "run"], "nothing was started; the log has the traceback"


@pytest.mark.parametrize(
    ("kwargs", "cause"),
    [
        (["where=step", "every=5", "length=50"], "ValueError: deliberate: step raises"),
        (["wrong=shape", "after=5", "length=50"], "must be float32 of shape (4,)"),
    ],
)
def test_an_env_that_fails_later_ends_the_run_with_its_traceback(
    run_cli: RunCli, tmp_path: Path, kwargs: list[str], cause: str
) -> None:
    env = "RaisingEnv" if kwargs[0].startswith("where") else "WrongDtypeEnv"
    done = run_cli(*train(f"{FAKES}:{env}", "--env-kwargs", *kwargs))
    assert done.returncode == 1
    end = "\n".join(done.stderr.rstrip().splitlines()[-2:])
    assert cause in end and "row 0" in end
    written = summary(tmp_path / "run")
    assert written["status"] == "failed" and cause in written["error"]
    assert cause in (tmp_path / "run" / "log.txt").read_text()


def test_a_hanging_step_is_noticed_and_shown(run_cli: RunCli, tmp_path: Path) -> None:
    more: tuple[str, ...] = ("--env-kwargs", "where=step", "after=30", "--env-timeout", "3")
    more = (*more, "--max-worker-restarts", "0")
    done = run_cli(*train(f"{FAKES}:HangingEnv", *more))
    assert done.returncode == 1
    assert "actor 0 has been in one step" in last_line(done.stderr)
    assert "in hang" in done.stderr, "the stacks name the place"
    assert "--env-timeout 3" in summary(tmp_path / "run")["error"]


def test_a_stopped_actor_is_noticed_shown_and_replaced(start_cli: StartCli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_cli(*train("CartPole-v1", "--env-timeout", "3", "--max-worker-restarts", "1"))
    until_trained(process, run)
    worker(process, "sampleforge: actor 0").send_signal(signal.SIGSTOP)
    until(lambda: last_report(run).get("restarts_actor") == 1, process)
    steps = last_report(run)["env_steps"]
    until(lambda: last_report(run)["env_steps"] > steps + 1000, process)
    worker(process, "sampleforge: actor 0").send_signal(signal.SIGSTOP)
    _, stderr = process.communicate(timeout=2 * WITHIN_S)
    assert process.returncode == 1
    assert "actor 0 was stopped, for " in last_line(stderr)
    assert "actor.py" in stderr, "it was woken up to show its stacks"


@pytest.mark.parametrize("victim", ["learner", "forkserver", slow("actor 0"), slow("policy 0")])
def test_a_killed_worker_ends_the_run(start_cli: StartCli, tmp_path: Path, victim: str) -> None:
    process = start_cli(
        *train("CartPole-v1", "--inference", "worker", "--max-worker-restarts", "0")
    )
    until_trained(process, tmp_path / "run")
    title = "multiprocessing.forkserver" if victim == "forkserver" else f"sampleforge: {victim}"
    worker(process, title).kill()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    expected = "fork server" if victim == "forkserver" else f"{victim} was ended by signal SIGKILL"
    assert expected in last_line(stderr)
    assert summary(tmp_path / "run")["status"] == "failed"


def test_after_a_killed_driver_nothing_is_left_and_the_same_command_goes_on(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = train("CartPole-v1", "--checkpoint-interval", "0.3")
    process = start_cli(*command)
    until_trained(process, run)
    until(lambda: list(run.glob("checkpoints/*.safetensors")), process)
    process.kill()
    process.wait()
    gone_soon(process)
    (saved, *_) = sorted(run.glob("checkpoints/*.safetensors"))[::-1]
    steps = int(saved.name.split("-")[0])
    done = run_cli(*command, "--train-for-env-steps", str(steps + 2000))
    assert done.returncode == 0, done.stderr
    after = summary(run)
    assert steps + 2000 <= after["env_steps"] < steps + 5000
    assert not (run / "scratch").exists()


def test_a_simulator_that_holds_the_interpreter_dies_with_the_driver(
    start_cli: StartCli, tmp_path: Path
) -> None:
    """Its module is the user's own, in the current directory, and so are its files."""
    (tmp_path / "stuck.py").write_text(STUCK)
    process = start_cli(*train("stuck:Stuck", "--env-kwargs", "after=50"))
    until((tmp_path / "stuck.txt").exists, process)
    process.kill()
    process.wait()
    gone_soon(process)


def gone_soon(process: subprocess.Popen[str]) -> None:
    """All processes of the command end."""
    give_up_at = time.monotonic() + WITHIN_S
    while members := session_members(process.pid):
        assert time.monotonic() < give_up_at, members
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_an_interrupt_checkpoints_and_leaves(
    start_cli: StartCli, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_cli(*train("CartPole-v1"))
    until_trained(process, tmp_path / "run")
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + number
    assert stderr == ""
    assert last_line(stdout).startswith("Interrupted after ")
    written = summary(tmp_path / "run")
    assert written["status"] == "interrupted" and written["error"] is None
    assert list((tmp_path / "run").glob("checkpoints/*.safetensors"))


def test_a_learner_that_was_stopped_at_its_start_is_woken_up_for_the_last_checkpoint(
    start_cli: StartCli, tmp_path: Path
) -> None:
    """There is no state in shared memory yet that could be saved in its place."""
    (tmp_path / "held.py").write_text(HELD)
    more = ("--model.encoder", "held:Held", "--callbacks", "held:Polled")
    process = start_cli(*train("CartPole-v1", *more, "--report-interval", "1000"))
    until((tmp_path / "held.txt").exists, process)
    worker(process, "sampleforge: learner").send_signal(signal.SIGSTOP)
    (tmp_path / "go.txt").touch()
    until((tmp_path / "polled.txt").exists, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=2 * WITHIN_S)
    assert process.returncode == 130, stderr
    assert "Waiting up to 30 s for learner" in stderr
    assert list((tmp_path / "run").glob("checkpoints/*.safetensors"))


def test_a_second_interrupt_leaves_at_once(start_cli: StartCli, tmp_path: Path) -> None:
    """The first one waits for a learner that never comes to its last checkpoint, and says so."""
    (tmp_path / "held.py").write_text(HELD)
    more = ("--model.encoder", "held:Held", "--callbacks", "held:Polled")
    process = start_cli(*train("CartPole-v1", *more, "--report-interval", "1000"))
    until((tmp_path / "held.txt").exists, process)
    until((tmp_path / "polled.txt").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = next((line for line in process.stderr if "Waiting up to 30 s for learner" in line), "")
    assert "Ctrl-C ends the run without it" in said
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stdout) == (130, "")
    assert not list((tmp_path / "run").glob("checkpoints/*.safetensors"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_the_start_ends_the_command_silently(
    start_cli: StartCli, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_cli(*train(f"{FAKES}:HangingEnv"))
    worker(process, "probe_child")
    time.sleep(0.2)
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + number
    assert (stdout, stderr) == ("", "")

"""A signal to the whole process group, as `timeout`, systemd, Slurm and terminals send it: the run
ends with a checkpoint, not with the deaths of its workers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sampleforge.run.folder.checkpoint import CheckpointStore
from tests.support import REPO
from tests.support.processes import RunCli, StartCli, end_session, session_members
from tests.support.runs import last_report, summary, until, until_trained, worker
from tests.support.variants import slow

WITHIN_S = 20.0
"""5 s are promised; beside other tests on a busy machine everything takes longer. What loses the
run loses it at once."""
SETTINGS = {
    "appo": "appo --num-workers 2 --inference worker --evaluate-interval 2000",
    "apex": "apex --num-workers 2 --learning-starts 500 --num-replay-shards 2 --save-replay",
    "ddppo": "ddppo --num-ranks 2 --rollout 32 --device cpu",
}
COMMON = "--num-envs-per-worker 4 --report-interval 0.3 --run-dir run --seed 1 --quiet"
ENGINE = "tests.support.envs:EngineVectorEnv"

pytestmark = pytest.mark.multiprocess(timeout=150)


@pytest.fixture(autouse=True)
def signals_are_not_ignored() -> Iterator[None]:
    """Where the tests themselves run under nohup, SIGHUP is ignored, which children inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def command(algo: str, env: str = "CartPole-v1") -> list[str]:
    return ["train.py", *SETTINGS[algo].split(), "--env", env, *COMMON.split()]


def checkpoint_of(run: Path) -> int:
    """Env steps of the newest checkpoint, which is valid."""
    problems: list[str] = []
    found = CheckpointStore(run / "checkpoints", 1).load(log=problems.append)
    assert found is not None and problems == []
    return found[1].env_steps


def check_interrupted(process: subprocess.Popen[str], run: Path, number: int) -> int:
    """The command has ended as it should after signal ``number``; env steps of its checkpoint."""
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + number, (stdout, stderr)
    assert "Traceback" not in stderr
    assert summary(run)["status"] == "interrupted", summary(run)
    assert checkpoint_of(run) > 0
    return checkpoint_of(run)


@pytest.mark.parametrize("algo", ["appo", slow("apex"), "ddppo"])
def test_sigterm_to_the_group_leaves_a_checkpoint_that_the_same_command_goes_on_from(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path, algo: str
) -> None:
    run = tmp_path / "run"
    process = start_cli(*command(algo))
    until_trained(process, run)
    os.killpg(process.pid, signal.SIGTERM)
    steps = check_interrupted(process, run, signal.SIGTERM)
    done = run_cli(*command(algo), "--train-for-env-steps", str(steps + 2000))
    assert done.returncode == 0, done.stderr
    assert summary(run)["env_steps"] >= steps + 2000
    assert summary(run)["updates"] > 0


@pytest.mark.parametrize(
    ("algo", "number"),
    [
        ("appo", signal.SIGHUP),
        ("ddppo", signal.SIGINT),
        slow("appo", signal.SIGINT),
        slow("ddppo", signal.SIGHUP),
    ],
)
def test_ctrl_c_and_a_terminal_that_hangs_up_leave_a_checkpoint(
    start_cli: StartCli, tmp_path: Path, algo: str, number: signal.Signals
) -> None:
    process = start_cli(*command(algo))
    until_trained(process, tmp_path / "run")
    os.killpg(process.pid, number)
    if number == signal.SIGHUP:
        os.killpg(process.pid, number)  # the shell hangs up, and then the terminal
    check_interrupted(process, tmp_path / "run", number)


@pytest.mark.parametrize("algo", [slow("appo"), "ddppo"])
def test_engines_that_the_signal_ends_do_not_turn_the_end_into_a_crash(
    start_cli: StartCli, tmp_path: Path, algo: str
) -> None:
    """Also not where the learner itself steps them: the state that was kept is saved then. Workers
    and engines are not in the driver's process group, but systemd signals every process."""
    process = start_cli(*command(algo, ENGINE))
    until_trained(process, tmp_path / "run")
    for member in session_members(process.pid):
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGTERM)
    check_interrupted(process, tmp_path / "run", signal.SIGTERM)
    assert summary(tmp_path / "run")["error"] is None


def test_a_rank_that_does_not_answer_cannot_keep_the_checkpoint_back(
    start_cli: StartCli, tmp_path: Path
) -> None:
    process = start_cli(*command("ddppo"))
    until_trained(process, tmp_path / "run")
    worker(process, "sampleforge: rank 0").send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    check_interrupted(process, tmp_path / "run", signal.SIGTERM)


def test_timeout_ends_a_run_in_order(start_cli: StartCli, tmp_path: Path) -> None:
    """It signals its child, and then its child's group: the child is told twice."""
    run = tmp_path / "run"
    words = [sys.executable, str(REPO / "train.py"), *command("appo")[1:]]
    process = subprocess.Popen(
        ["timeout", "--preserve-status", "3600", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until_trained(process, run)
        process.send_signal(signal.SIGTERM)
        check_interrupted(process, run, signal.SIGTERM)
    finally:
        process.kill()
        process.communicate()


def test_a_terminal_that_is_closed_leaves_a_checkpoint(tmp_path: Path) -> None:
    """Its live display has nothing left to be drawn on."""
    run = tmp_path / "run"
    words = [word for word in command("appo")[1:] if word != "--quiet"]
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(REPO / "train.py"), *words],
        cwd=tmp_path,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    os.set_blocking(terminal, False)
    try:
        until(lambda: drawn(terminal) and has_trained(run), process)
        os.close(terminal)
        assert process.wait(WITHIN_S) == 128 + signal.SIGHUP
    finally:
        left = end_session(process)
    assert left == []
    assert summary(run)["status"] == "interrupted"
    assert checkpoint_of(run) > 0


def has_trained(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return len(lines) > 1 and json.loads(lines[-2])["updates"] > 0


def drawn(terminal: int) -> bool:
    """Take what is on the terminal, which would be full otherwise."""
    with suppress(BlockingIOError):
        os.read(terminal, 1 << 16)
    return True


def test_workers_outlive_signals_that_are_for_the_driver(
    start_cli: StartCli, tmp_path: Path
) -> None:
    """The driver ends it; the operating system does if the driver is killed."""
    run = tmp_path / "run"
    process = start_cli(*command("appo"))
    until_trained(process, run)
    for title in ("actor 0", "policy 0", "learner", "evaluator", "multiprocessing.forkserver"):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2):
            worker(process, title).send_signal(number)
    steps = last_report(run)["env_steps"]
    until(lambda: last_report(run)["env_steps"] > steps + 1000, process)
    assert last_report(run)["restarts"] == 0
    process.kill()
    process.communicate()

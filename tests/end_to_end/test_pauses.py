"""A run that is paused: Ctrl-Z and fg, a driver that is held, a clock that begins with the work."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.processes import RunCli, StartCli
from tests.support.runs import last_report, summary, train, until, until_trained

WITHIN_S = 20.0

pytestmark = pytest.mark.multiprocess(timeout=120)


def test_ctrl_z_and_fg_kill_no_worker_and_do_not_count_as_training(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = ("--env-timeout", "5", "--max-worker-restarts", "0", "--inference", "worker")
    process = start_cli(*train("CartPole-v1", *more))
    until_trained(process, run)
    earlier, began = last_report(run), time.monotonic()
    until(lambda: last_report(run)["wall_s"] > earlier["wall_s"], process)
    before = last_report(run)  # written after ``began``
    driver = psutil.Process(process.pid)
    workers = driver.children(recursive=True)

    def all_stopped() -> bool:
        stopped = [each for each in workers if each.status() == psutil.STATUS_STOPPED]
        names = " ".join(" ".join(each.cmdline()) for each in stopped)
        of_interest = [f"sampleforge: {name}" for name in ("actor 0", "learner", "policy 0")]
        return driver.status() == psutil.STATUS_STOPPED and all(n in names for n in of_interest)

    process.send_signal(signal.SIGTSTP)
    until(all_stopped, process)
    time.sleep(7)  # longer than the time-out
    process.send_signal(signal.SIGCONT)
    steps = before["env_steps"] + 3000
    until(lambda: last_report(run)["env_steps"] > steps, process)
    trained_s = last_report(run)["wall_s"] - before["wall_s"]
    assert trained_s < time.monotonic() - began - 5
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 143, (stdout, stderr)
    assert summary(run)["restarts"] == 0


@pytest.mark.slow
def test_a_driver_that_is_held_does_not_end_the_run(start_cli: StartCli, tmp_path: Path) -> None:
    """The actors go on, until there is no room for more finished episodes."""
    run = tmp_path / "run"
    env = ("tests.support.envs:CodeEnv", "--env-kwargs", "length=1")
    rows = ("--num-envs-per-worker", "64", "--env-timeout", "5", "--max-worker-restarts", "0")
    process = start_cli(*train(*env, *rows))
    until_trained(process, run)
    process.send_signal(signal.SIGSTOP)
    time.sleep(25)
    process.send_signal(signal.SIGCONT)
    steps = last_report(run)["env_steps"]
    until(lambda: last_report(run)["env_steps"] > steps, process)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 143, (stdout, stderr)
    found = summary(run)
    assert found["restarts"] == 0
    assert found["episodes"] >= 0.9 * found["env_steps"], "no episode is lost"


def test_seconds_of_training_begin_with_the_first_env_step(run_cli: RunCli, tmp_path: Path) -> None:
    began = time.monotonic()
    done = run_cli(*train("tests.end_to_end.test_pauses:late", "--train-for-seconds", "2"))
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path / "run")
    assert found["env_steps"] > 0 and found["episodes"] > 0
    assert 2 <= found["wall_s"] < took - 8 * LATE_S, "without the start of the eight rows"


LATE_S = 0.25


def late() -> object:
    """Make an environment that needs as long to start as the whole training may take."""
    from tests.support.envs import CodeEnv

    time.sleep(LATE_S)  # of each row
    return CodeEnv(length=5)

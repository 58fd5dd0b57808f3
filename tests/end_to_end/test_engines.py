"""Simulators with processes of their own, and environments that cannot be closed: nothing is left,
and what the run ends with is why it has failed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.processes import RunCli, StartCli, session_members
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.variants import slow

ENGINES = """
import subprocess
import time
import gymnasium as gym

class Engine(gym.Wrapper):
    '''Its engine is a process that nothing but `close` ends, which takes `slow` seconds. The step
    number `fails` raises; after the fourth error `close` raises as well, or hangs.'''

    errors = 0

    def __init__(self, slow=0.0, fails=10**9, closing=""):
        super().__init__(gym.make("CartPole-v1"))
        self.engine = subprocess.Popen(["sleep", "987654"])
        self.slow, self.left, self.closing = slow, fails, closing

    def step(self, action):
        self.left -= 1
        if self.left <= 0:
            Engine.errors += 1
            raise ValueError("deliberate: the root cause")
        return super().step(action)

    def close(self):
        time.sleep(self.slow)
        self.engine.kill()
        self.engine.wait()
        if self.closing == "raises" and self.errors >= 4:
            raise RuntimeError("deliberate: close raises")
        while self.closing == "hangs" and self.errors >= 4:
            time.sleep(1)
"""
WITHIN_S = 20.0

pytestmark = pytest.mark.multiprocess(timeout=120)


@pytest.fixture(autouse=True)
def engines_module(tmp_path: Path) -> None:
    (tmp_path / "engines.py").write_text(ENGINES)


def engines_of(pid: int) -> list[psutil.Process]:
    """The engines in a command's session."""
    return [member for member in session_members(pid) if is_engine(member)]


def is_engine(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["sleep"]
    except psutil.Error:
        return False


@pytest.mark.parametrize("algo", ["appo", slow("ddppo")])
def test_engines_end_with_a_killed_driver(start_cli: StartCli, tmp_path: Path, algo: str) -> None:
    command = train("engines:Engine", algo=algo)
    if algo == "ddppo":
        command = [word.replace("--num-workers", "--num-ranks") for word in command]
    process = start_cli(*command)
    until_trained(process, tmp_path / "run")
    assert len(engines_of(process.pid)) == 8
    process.kill()
    process.wait()
    give_up_at = time.monotonic() + WITHIN_S
    while left := session_members(process.pid):
        assert time.monotonic() < give_up_at, left
        time.sleep(0.05)


def test_engines_end_with_their_killed_actor(start_cli: StartCli, tmp_path: Path) -> None:
    process = start_cli(*train("engines:Engine"))
    until_trained(process, tmp_path / "run")
    before = engines_of(process.pid)
    worker(process, "sampleforge: actor 0").kill()
    until(lambda: last_report(tmp_path / "run")["restarts"] == 1, process)
    assert len(before) == 8

    def has_its_own_only() -> bool:
        found = engines_of(process.pid)
        return len(found) == 8 and not set(before) & set(found)

    until(has_its_own_only, process)  # the new actor
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WITHIN_S)


def test_a_run_whose_environments_close_slowly_leaves_nothing(
    run_cli: RunCli, tmp_path: Path
) -> None:
    more = ("--env-kwargs", "slow=3", "--train-for-env-steps", "2000")
    done = run_cli(*train("engines:Engine", *more))  # which looks for what is left
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize(
    ("closing", "how"), [slow("raises", []), ("hangs", []), ("raises", ["--serial"])]
)
def test_the_cause_is_the_last_word_though_closing_fails(
    run_cli: RunCli, tmp_path: Path, closing: str, how: list[str]
) -> None:
    more = ("--env-kwargs", "fails=6", f"closing={closing}", *how)
    more = (*more, "--num-envs-per-worker", "1", "--num-splits", "1", "--max-env-restart-rate", "1")
    done = run_cli(*train("engines:Engine", *more), timeout=60)
    assert done.returncode == 1
    *_, cause, where = done.stderr.rstrip().splitlines()
    assert cause == "ValueError: deliberate: the root cause"
    assert "the first of 4 errors in a row" in where
    assert "deliberate: the root cause" in summary(tmp_path / "run")["error"]

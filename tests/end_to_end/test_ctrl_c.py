"""Ctrl-C at any moment of a command's life, from its first instant to its last: the promised exit
code, no traceback, a checkpoint if anything was learned, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sampleforge.run.folder.checkpoint import CheckpointStore
from tests.support.processes import RunCli, StartCli
from tests.support.runs import SMALL, summary

WITHIN_S = 20.0
"""5 s are promised; beside other tests on a busy machine everything takes longer."""
GOAL = {"appo": 8_000, "apex": 4_000, "ddppo": 6_000}
FLAGS = {
    "appo": ("--async-rl", *SMALL),
    "apex": ("--learning-starts", "500", *SMALL),
    "ddppo": ("--num-ranks", "2", "--device", "cpu", *SMALL[2:]),
}
BY_SIGNAL = -signal.SIGINT
"""The interpreter itself ends so (a shell reports 130) before the command has begun and after it
has ended."""


def command(algo: str, run_dir: str) -> list[str]:
    goal = ("--train-for-env-steps", str(GOAL[algo]), "--seed", "3")
    return ["train", algo, "--env", "CartPole-v1", "--run-dir", run_dir, *goal, *FLAGS[algo]]


def learned(run: Path) -> bool:
    """Whether the run has reported an update."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return any(report["updates"] > 0 for report in whole)


def check_end(process: subprocess.Popen[str], run: Path, at: float) -> None:
    """The command ends as promised after a Ctrl-C ``at`` so many seconds of its life."""
    had_learned = learned(run)
    asked = time.monotonic()
    stdout, stderr = process.communicate(timeout=WITHIN_S)
    took = time.monotonic() - asked
    told = f"Ctrl-C after {at:.2f} s, ended {took:.2f} s later: {process.returncode}\n{stderr}"
    print(told, stdout[-300:])
    assert process.returncode in (0, 128 + signal.SIGINT, BY_SIGNAL), told
    if process.returncode == BY_SIGNAL:
        assert not run.exists() or summary(run)["status"] == "finished", told
    else:
        assert "Traceback" not in stderr and "Exception ignored" not in stderr, told
    if process.returncode == 0:
        assert summary(run)["status"] == "finished", told
    if (run / "summary.json").exists():
        assert summary(run)["error"] is None, told
    if had_learned:
        problems: list[str] = []
        assert summary(run)["status"] in ("interrupted", "finished")
        found = CheckpointStore(run / "checkpoints", 1).load(log=problems.append)
        assert found is not None and problems == [], told
        assert found[1].env_steps > 0


def interrupted(process: subprocess.Popen[str], began: float, at: float) -> bool:
    """Press Ctrl-C ``at`` so many seconds after the start; return False if the command had ended
    before."""
    while (left := began + at - time.monotonic()) > 0:
        if process.poll() is not None:
            return False
        time.sleep(min(left, 0.02))
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGINT)
    return True


def check_moments(
    start_cli: StartCli, run_cli: RunCli, folder: Path, algo: str, moments: int
) -> None:
    """Interrupt one command in each of ``moments`` equal parts of an undisturbed one's life, which
    is as long as that of the latest one that came to its end."""
    scratch = folder / "tmp"
    scratch.mkdir()
    env = {"TMPDIR": str(scratch)}
    began = time.monotonic()
    done = run_cli(*command(algo, "undisturbed"), env=env, timeout=240)
    life = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    draw = random.Random(f"Ctrl-C {algo}")
    for part in range(moments):
        position = (part + draw.random()) / moments
        for attempt in range(4):
            name = f"run {part}.{attempt}"
            began = time.monotonic()
            process = start_cli(*command(algo, name), env=env)
            was_alive = interrupted(process, began, position * life)
            check_end(process, folder / name, position * life)
            if was_alive:
                break
            life = time.monotonic() - began  # the machine is less busy than before
    names = {path.name for path in folder.iterdir()} - {"tmp", "undisturbed"}
    assert all(name.startswith("run ") for name in names), names
    assert list(scratch.iterdir()) == []


@pytest.mark.multiprocess(timeout=300)
def test_ctrl_c_at_three_moments_ends_a_run_as_promised(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path
) -> None:
    check_moments(start_cli, run_cli, tmp_path, "appo", 3)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "moments"), [("appo", 20), ("apex", 10), ("ddppo", 10)])
def test_ctrl_c_at_any_moment_ends_a_run_as_promised(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path, algo: str, moments: int
) -> None:
    check_moments(start_cli, run_cli, tmp_path, algo, moments)

"""Runs of DD-PPO that are still going on, and the processes of their ranks."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from sampleforge.run.reports.metrics import read_metrics
from tests.support.runs import last_report, until


def training(start_cli: Any, tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    """Two ranks that have made some updates, and go on for a while."""
    flags = (
        "train ddppo --env CartPole-v1 --num-ranks 2 --num-envs-per-worker 2 --rollout 64 --debug "
        "--num-epochs 2 --minibatch-size 128 --device cpu --report-interval 0.5 "
        "--train-for-env-steps 1000000 --run-dir run --seed 1"
    )
    run: subprocess.Popen[str] = start_cli(*flags.split(), *more)
    wait_for_updates(run, tmp_path, 4)
    return run


def wait_for_updates(run: subprocess.Popen[str], tmp_path: Path, more: int) -> None:
    """Until a report shows so many more updates than the last one so far."""
    metrics = tmp_path / "run" / "metrics.jsonl"

    def updates() -> float:
        reports = read_metrics(metrics) if metrics.exists() else []
        return max((report["updates"] for report in reports), default=0)

    wanted = updates() + more
    while updates() < wanted:
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)


def wait_for_restarts(run: subprocess.Popen[str], tmp_path: Path, count: int) -> None:
    """Wait for a report with ``count`` restarts of ranks. Updates counted by later reports are made
    with the new ranks, as no update is made without all ranks."""
    until(lambda: last_report(tmp_path / "run").get("restarts", 0) >= count, run)


def rank_process(driver: int, rank: int) -> int:
    """Process id of a rank."""
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if f"sampleforge: rank {rank}" in " ".join(process.cmdline()):
                return process.pid
    raise AssertionError(f"rank {rank} has no process")


def is_replaced(driver: int, rank: int, before: int) -> bool:
    """Whether a rank has a process again, after the one with the id ``before``."""
    try:
        return rank_process(driver, rank) != before
    except (AssertionError, psutil.NoSuchProcess):
        return False

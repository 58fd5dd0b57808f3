"""Runs of the command line that are still going on: what they have reported, their processes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import session_members

PATIENCE_S = 60.0
SMALL = ("--num-workers", "1", "--num-envs-per-worker", "8", "--report-interval", "0.3")
"""One actor of a few rows, so that a test machine is not full of them; frequent reports."""


def train(env: str, *more: str, run_dir: str = "run", algo: str = "appo") -> list[str]:
    """A small training command in the folder ``run_dir``, with actors beside the learner; ``more``
    goes over it."""
    beside = ["--async-rl"] if algo == "appo" else []
    return ["train", algo, "--env", env, "--run-dir", run_dir, "--quiet", *SMALL, *beside, *more]


def summary(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found


def last_report(run_dir: Path) -> dict[str, Any]:
    """The newest whole line of metrics.jsonl; {} before there is one."""
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    found: dict[str, Any] = json.loads(whole[-1]) if whole else {}
    return found


def until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """What ``condition`` gives, once it is true; AssertionError if the command ends before."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.02)
    return found


def until_trained(process: subprocess.Popen[str], run_dir: Path) -> None:
    """Wait for the first report after an update."""
    until(lambda: last_report(run_dir).get("updates", 0) > 0, process)


def worker(process: subprocess.Popen[str], title: str) -> psutil.Process:
    """The process of a command's session whose command line holds ``title``."""

    def find() -> psutil.Process | None:
        for member in session_members(process.pid):
            try:
                if title in " ".join(member.cmdline()):
                    return member
            except psutil.NoSuchProcess:
                continue
        return None

    found: psutil.Process = until(find, process)
    return found


def newest(run: Path) -> dict[str, Any]:
    """The tensors of a run's newest checkpoint."""
    from safetensors.torch import load_file

    manifest = json.loads((run / "checkpoints" / "manifest.json").read_text())
    entry = max(manifest["entries"], key=lambda entry: entry["number"])
    return load_file(run / "checkpoints" / entry["file"])

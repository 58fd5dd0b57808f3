"""A small soak: random workers of a real run are killed and stopped, and the run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

SECONDS = 120
"""Of training: a rank takes seconds to start on busy cores, and faults of the last 30 s need not
have been overcome."""


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["appo-policy-workers", "apex-2-shards", "ddppo-3-ranks"])
def test_a_run_outlives_the_random_faults_of_two_minutes(tmp_path: Path, topology: str) -> None:
    command = [sys.executable, str(REPO / "benchmarks" / "soak.py"), "run"]
    command += ["--topologies", topology, "--seconds", str(SECONDS), "--mean-gap", "6"]
    command += ["--undisturbed", "0", "--results", str(tmp_path)]
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=5 * SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run: dict[str, Any] = json.loads((tmp_path / "soak.jsonl").read_text())
    assert (run["hung"], run["exit_code"], run["status"]) == (None, 0, "finished"), run["output"]
    assert run["processes_left"] == run["shm_left"] == []
    kills = [f for f in run["faults"] if f["signal"] == "SIGKILL" and not f["overtaken"]]
    in_time = [fault for fault in kills if fault["at"] < run["ended_s"] - 30]
    assert in_time and all(fault["again_s"] is not None for fault in in_time), in_time
    # Ranks all meet in a new group, so that a rank may also be replaced that was not struck.
    assert sum(run["restarts_by_role"].values()) >= len(kills) - 1, "one may be struck at the end"

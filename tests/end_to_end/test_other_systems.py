"""Without what Linux alone has (futexes, /proc, /dev/shm, a fork server, processor affinity), as on
macOS: training, evaluation, plots and export run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import other_system

pytestmark = pytest.mark.multiprocess(timeout=240)


@pytest.fixture
def elsewhere(run_cli: Any, tmp_path: Path) -> Any:
    """`elsewhere(*args)` -> the output of a command that ends well on such a system."""
    (tmp_path / "system").mkdir()
    shutil.copy(other_system.__file__, tmp_path / "system" / "sitecustomize.py")

    def run(*args: str) -> str:
        env = {"PYTHONPATH": str(tmp_path / "system")}
        done = run_cli(*args, timeout=120, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    return run


COMMANDS = """
from sampleforge.cli import main

if __name__ == "__main__":
    for command in (
        "train appo --env CartPole-v1 --train-for-env-steps 6000 --serial --quiet --run-dir run",
        "eval run --episodes 2",
        "plot run --out run.png",
        "export run --out run.onnx",
    ):
        assert main(command.split()) == 0, command
"""


def test_a_serial_run_is_trained_evaluated_plotted_and_exported(elsewhere, tmp_path):
    (tmp_path / "commands.py").write_text(COMMANDS)
    elsewhere("commands.py")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] > 0
    assert (tmp_path / "run.png").stat().st_size and (tmp_path / "run.onnx").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "env_steps"),
    [
        ("appo", "CartPole-v1", 20_000),
        ("apex", "CartPole-v1", 20_000),
        ("sac", "Pendulum-v1", 6_000),
        ("ddppo", "CartPole-v1", 20_000),
    ],
)
def test_workers_are_processes_there_too(algo, env, env_steps, elsewhere, tmp_path):
    elsewhere(
        *("train", algo, "--env", env, "--train-for-env-steps", str(env_steps)),
        *("--run-dir", "run"),
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates"] > 0
    elsewhere("doctor")

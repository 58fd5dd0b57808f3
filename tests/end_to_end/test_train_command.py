"""A run from its command to its summary: what it writes, when it stops, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.processes import RunCli, StartCli
from tests.support.runs import summary, train, until_trained
from tests.support.variants import slow

SUMMARY = {
    *("status", "algo", "env", "seed", "env_steps", "env_frames", "wall_s", "frames_per_s"),
    *("env_steps_per_s", "trained_per_s", "updates", "episodes", "return_mean", "return_std"),
    *("return_best", "return_episodes", "return_is_early", "stopped_by", "skipped_updates"),
    *("policy_lag", "restarts", "restarts_by_role", "env_restarts", "nonfinite_steps", "error"),
    "far_values",
}
IN_FLIGHT = 4 * 32 * 8
"""Env steps that may be under way when the goal is reached: rollouts of `SMALL`, twice over."""

pytestmark = pytest.mark.multiprocess(timeout=120)


def test_a_run_stops_at_its_goal_and_leaves_a_complete_folder(
    run_cli: RunCli, tmp_path: Path
) -> None:
    name = "mein Läufer 1"
    done = run_cli(*train("CartPole-v1", "--train-for-env-steps", "10000", run_dir=name))
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / name
    assert done.stdout.startswith("Finished after ") and done.stdout.rstrip().endswith(name)
    assert len(done.stdout.splitlines()) == 1
    assert {path.name for path in run.iterdir()} == {
        *("config.yaml", "metrics.jsonl", "summary.json", "log.txt", "checkpoints", "tb", ".lock"),
        *("spec.json", "workers.json", "episodes.csv"),
    }
    written = summary(run)
    assert set(written) == SUMMARY
    assert written["status"] == "finished" and written["error"] is None
    assert 10_000 <= written["env_steps"] < 10_000 + IN_FLIGHT
    assert written["updates"] > 0 and written["episodes"] > 0 and written["return_mean"] > 8
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = reports[-1]
    assert abs(last["env_steps"] - written["env_steps"]) < IN_FLIGHT
    for name in ("return_mean", "length_mean", "policy_lag_mean", "updates", "frames_per_s_60s"):
        assert any(name in report for report in reports)  # the last may hold no update


@pytest.mark.parametrize("inference", [slow("inline"), "worker"])
def test_a_run_ends_after_train_for_seconds_with_plain_lines(
    run_cli: RunCli, tmp_path: Path, inference: str
) -> None:
    """Reports are plain lines where the output is no terminal."""
    arguments = train("CartPole-v1", "--train-for-seconds", "2", "--inference", inference)
    arguments.remove("--quiet")
    done = run_cli(*arguments)
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path / "run")
    assert found["wall_s"] >= 2.0 and found["stopped_by"] == "wall_s>=2"
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SampleForge ") and "appo on CartPole-v1, CPU, seed " in lines[0]
    assert lines[2].startswith("1 worker x 8 envs, ") and lines[2].endswith(", CPU, fp32")
    assert "actors --> learner" not in done.stdout, "the wiring is for --debug"
    assert "actors --> learner" in (tmp_path / "run" / "log.txt").read_text()
    assert "\x1b" not in done.stdout
    assert re.match(r"Finished after \d+:\d\d: ", lines[-4])
    assert lines[-1] == "To plot: sampleforge plot run"


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        slow("nosuch.module:make", "there is no module 'nosuch'"),
        ("ALE/Brekout-v5", "Did you mean ALE/Breakout-v5"),
        slow("CartPole-v3", "Did you mean CartPole-v1"),
    ],
)
def test_an_unknown_environment_is_refused_with_a_remedy(
    run_cli: RunCli, tmp_path: Path, env: str, remedy: str
) -> None:
    done = run_cli("train", "appo", "--env", env)
    assert done.returncode == 2
    assert remedy in done.stderr.rstrip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--num-envs-per-worker", "100000", "--rollout", "30000"], "of shared memory"),
        (["--batch-size", "1009"], "--batch-size 1009 is not a multiple of"),
        slow(["--device", "cuda:17"], "CUDA devices"),
        slow(["--model.encoder", "nature_cnn"], "image"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    run_cli: RunCli, more: list[str], complaint: str
) -> None:
    done = run_cli(*train("CartPole-v1", *more))
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_another_run_uses_is_refused(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path
) -> None:
    first = start_cli(*train("CartPole-v1"))
    until_trained(first, tmp_path / "run")
    second = run_cli(*train("CartPole-v1"))
    assert second.returncode == 2
    assert f"in use by process {first.pid}" in second.stderr
    assert first.poll() is None
    first.terminate()
    assert first.wait(20) == 143


def test_a_folder_that_cannot_be_made_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_cli(*train("CartPole-v1", run_dir="file/run"))
    assert done.returncode == 2
    assert "give another --run-dir" in done.stderr

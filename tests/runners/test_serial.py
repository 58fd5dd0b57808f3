"""One process, one seed: every bit again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.topologies.config import AnyConfig, AppoConfig
from tests.folder.test_resume import newest

CLOCK = ("wall_s", "frames_per_s", "env_steps_per_s", "trained_per_s", "stage_")
"""What is measured with a clock and may differ."""


def run(
    folder: Path, seed: int, make: Callable[..., AnyConfig] = AppoConfig, **more: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tensors of the last checkpoint, and the reports without what a clock has measured."""
    setting: dict[str, Any] = {
        "env": "CartPole-v1",
        "run_dir": str(folder),
        "seed": seed,
        "serial": True,
        "quiet": True,
        "train_for_env_steps": 8000,
        "num_envs_per_worker": 8,
        "report_interval": 2.0,
    }
    train(make(**{**setting, **more}))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    reports = [
        {k: v for k, v in json.loads(line).items() if not k.startswith(CLOCK)} for line in lines
    ]
    return newest(folder), reports


@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_a_seed_gives_the_same_weights_and_metrics_again(tmp_path: Path, inference: Any) -> None:
    first, first_reports = run(tmp_path / "1", 7, inference=inference)
    second, second_reports = run(tmp_path / "2", 7, inference=inference)
    assert len(first_reports) >= 4
    assert first_reports == second_reports
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, _ = run(tmp_path / "1", 7)
    second, _ = run(tmp_path / "2", 8)
    assert not all(tensor.equal(second[name]) for name, tensor in first.items())

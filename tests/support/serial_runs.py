"""Serial runs whose results can be compared bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sampleforge.api import train
from sampleforge.topologies.config import AnyConfig, AppoConfig
from tests.support.runs import newest

CLOCK = ("wall_s", "frames_per_s", "env_steps_per_s", "trained_per_s", "stage_", "system_")
"""What is measured with a clock, or of the machine, and may differ."""


def run_serially(
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

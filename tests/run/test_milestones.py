"""Milestones: checkpoints that are written when the run passes a multiple of --milestone-interval,
and never removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig

ENV = "tests.support.envs:CodeEnv"
EVERY, ROWS = 500, 8


def milestones(run: Path) -> list[int]:
    entries = json.loads((run / "checkpoints" / "manifest.json").read_text())["entries"]
    return [entry["env_steps"] for entry in entries if "milestone" in entry["kinds"]]


def settings(run: Path, env_steps: int) -> dict[str, Any]:
    return {
        **{"env": ENV, "run_dir": str(run), "serial": True, "quiet": True},
        **{"train_for_env_steps": env_steps, "milestone_interval": EVERY, "keep_checkpoints": 1},
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        lambda **more: AppoConfig(num_envs_per_worker=ROWS, async_rl=True, **more),
        lambda **more: ApexConfig(num_envs_per_worker=ROWS, learning_starts=1200, **more),
        lambda **more: DdppoConfig(num_envs_per_worker=ROWS, rollout=16, **more),
    ],
    ids=["appo", "apex", "ddppo"],
)
def test_a_checkpoint_is_written_at_each_milestone(tmp_path: Path, config: Any) -> None:
    """Also at those before the first update: appo and apex learn after the first one or two."""
    run = tmp_path / "run"
    train(config(**settings(run, 1800)))
    assert [steps // EVERY for steps in milestones(run)] == [1, 2, 3]
    assert all(steps % EVERY < 16 * ROWS for steps in milestones(run)), "not later than it need be"
    train(config(**settings(run, 2600)))
    assert [steps // EVERY for steps in milestones(run)] == [1, 2, 3, 4, 5], "after a resume too"

"""docs/callbacks.md has every hook, and its examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.run.callback import Callback
from sampleforge.topologies.config import AppoConfig
from sampleforge.workers.callback import WORKER_HOOKS, WorkerCallback
from tests.support import REPO

TEXT = (REPO / "docs" / "callbacks.md").read_text(encoding="utf-8")


def test_the_table_has_every_hook_where_it_runs() -> None:
    rows = re.findall(r"^\| `(\w+)\((\w+)[^|]*\| (\w+)", TEXT, re.MULTILINE)
    places = {hook: (argument, process) for hook, argument, process in rows}
    classes = (Callback, WorkerCallback)
    assert set(places) == {n for cls in classes for n in vars(cls) if not n.startswith("_")}
    in_driver = {n for n, place in places.items() if place == ("session", "driver")}
    assert in_driver == set(places) - set(WORKER_HOOKS)


@pytest.mark.long
def test_the_examples_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "examples"}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(block, names)
    setting: dict[str, Any] = {"serial": True, "quiet": True, "seed": 1, "report_interval": 1.0}
    setting |= {"num_envs_per_worker": 4, "train_for_env_steps": 4000, "rollout": 32}
    own = [names[name]() for name in ("Angles", "Inspect", "Fuel", "Patience")]
    evaluated = {**setting, "evaluate_interval": 1500, "evaluate_episodes": 2}
    train(AppoConfig(env="CartPole-v1", run_dir=str(tmp_path / "a"), **evaluated), own)
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    report = {name: value for line in lines for name, value in json.loads(line).items()}
    assert 0.0 < report["custom_angle_min"] < report["custom_angle_mean"] < 0.5
    assert report["custom_weight_norm_mean"] > 0 and report["hours"] > 0
    env = "tests.support.task_envs:LevelEnv"
    levels = AppoConfig(env=env, run_dir=str(tmp_path / "b"), **setting)
    train(levels, [names["Curriculum"]()])
    report = json.loads((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()[-1])
    assert report["return_mean"] > 1, "the level has been raised"

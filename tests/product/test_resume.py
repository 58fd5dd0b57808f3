"""A run goes on from its checkpoint, also if its process was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from sampleforge.api import train
from sampleforge.config import to_plain
from sampleforge.run.folder.checkpoint import CheckpointStore
from tests.support import REPO
from tests.support.processes import StartCli
from tests.support.product import ENV_STEPS, SMALL, small
from tests.support.runs import newest, summary, until


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_a_run_goes_on_from_its_checkpoint(
    algo: str, trained: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained(algo), folder)
    before, first = summary(folder), newest(folder)
    changed = {"train_for_env_steps": 2 * ENV_STEPS, "learning_rate": 1.25e-4}
    train(small(algo, folder, data, **changed, anneal={"learning_rate": "cosine"}))
    loaded = CheckpointStore(folder / "checkpoints", 1).load(log=print)
    assert loaded is not None
    assert loaded[0].state["learner"]["hyperparameters"]["learning_rate"] == 1.25e-4
    assert "Changed from here on: --learning-rate 0.000125 (was" in (folder / "log.txt").read_text()
    after, second = summary(folder), newest(folder)
    assert after["env_steps"] >= 2 * ENV_STEPS > before["env_steps"] >= ENV_STEPS
    assert any(not torch.equal(first[n], second[n]) for n in first if n.startswith("model/"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rates = [found["learning_rate"] for found in map(json.loads, lines) if "learning_rate" in found]
    assert rates[-1] < 2.5e-5, "the schedule goes on at the middle, and ends with the training"
    updates = [json.loads(line)["updates"] for line in lines]
    assert updates == sorted(updates) and updates[-1] > 0


@pytest.mark.multiprocess
@pytest.mark.parametrize("algo", SMALL)
def test_a_run_whose_process_was_killed_goes_on_from_its_checkpoint(
    algo: str, start_cli: StartCli, data: Path, tmp_path: Path
) -> None:
    """The kill comes as soon as there is a checkpoint, while the run goes on."""
    folder, file = tmp_path / "run", tmp_path / "config.yaml"
    endless = small(algo, folder, data, train_for_env_steps=10**9, checkpoint_interval=0.1)
    file.write_text(yaml.safe_dump(to_plain(endless)))
    process = start_cli("train", algo, "--config", str(file), cwd=REPO)
    until((folder / "checkpoints" / "manifest.json").is_file, process)
    process.kill()
    process.communicate()
    assert not (folder / "summary.json").exists()
    first = newest(folder)
    manifest = json.loads((folder / "checkpoints" / "manifest.json").read_text())
    reached = max(entry["env_steps"] for entry in manifest["entries"])
    train(small(algo, folder, data, train_for_env_steps=reached + ENV_STEPS))
    assert summary(folder)["env_steps"] >= reached + ENV_STEPS
    second = newest(folder)
    assert any(not torch.equal(first[n], second[n]) for n in first if n.startswith("model/"))

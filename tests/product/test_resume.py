"""A run goes on from its checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sampleforge.api import train
from tests.support.product import ENV_STEPS, SMALL, small
from tests.support.runs import newest, summary


@pytest.mark.parametrize("algo", SMALL)
def test_a_run_goes_on_from_its_checkpoint(
    algo: str, trained: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained(algo), folder)
    before, first = summary(folder), newest(folder)
    train(small(algo, folder, data, train_for_env_steps=2 * ENV_STEPS))
    after, second = summary(folder), newest(folder)
    assert after["env_steps"] >= 2 * ENV_STEPS > before["env_steps"] >= ENV_STEPS
    assert any(not torch.equal(first[n], second[n]) for n in first if n.startswith("model/"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    updates = [json.loads(line)["updates"] for line in lines]
    assert updates == sorted(updates) and updates[-1] > 0

"""A rank that acts on its device. What it does is the same on any device, so these tests have it on
the CPU, where it must give what inline inference gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import DdppoConfig
from tests.support.serial_runs import run_serially


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        {"env": "CartPole-v1", "model": {"core": "gru", "core_size": 8}},
        {
            "env": "tests.support.envs:CountingVectorEnv",
            "env_kwargs": {"mode": "same_step"},
            "model": {"activation": "silu"},  # inline, it is not computed in numpy
        },
    ],
    ids=["recurrent", "values of final observations"],
)
def test_a_rank_that_acts_on_its_device_learns_what_one_that_acts_inline_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    model = ModelConfig(hidden_sizes=(16,), **more.pop("model", {}))
    chosen = {"num_ranks": 1, "train_for_env_steps": 2000, "model": model, **more}
    weights, reports = run_serially(tmp_path / "inline", 3, DdppoConfig, **chosen)
    asked: list[bool] = []

    def on_device(*_: Any) -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr("sampleforge.topologies.ranks.actor.acts_on_device", on_device)
    again, same = run_serially(tmp_path / "device", 3, DdppoConfig, **chosen)
    assert asked
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    for one, other in zip(reports, same, strict=True):
        differ = {name for name in one if one[name] != other.get(name)}
        assert all(name.endswith("_s") for name in differ), differ

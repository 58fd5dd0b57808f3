"""The exported policy computes what the trained one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sampleforge.api import load_policy
from sampleforge.run.onnx_policy import OnnxPolicy
from sampleforge.tools.export.program import PolicyProgram
from sampleforge.tools.export.write import export_policy
from tests.support.product import SMALL

FILES = ("appo", "apex", "sac")
"""One for each kind of network: these are exported to a file. `tests/tools/export` holds that a
file computes what its program does."""


@pytest.mark.long
@pytest.mark.parametrize("algo", SMALL)
def test_an_exported_policy_acts_as_the_trained_one(
    algo: str, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    policy = load_policy(trained(algo), trust=True)
    size = policy.spec.observations["obs"].shape
    obs = {"obs": np.random.default_rng(1).normal(size=(64, *size)).astype(np.float32)}
    mine, _ = policy.act(obs["obs"])
    if algo in FILES:
        file = tmp_path / "policy.onnx"
        export_policy(policy, file)
        exported = OnnxPolicy(file)
        theirs = exported.act(obs, exported.initial_state(64), np.ones(64, bool))[0]["action"]
    else:
        theirs = PolicyProgram(policy)({"obs": torch.from_numpy(obs["obs"])})["action"].numpy()
    np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-5)
    assert len(np.unique(mine)) > 1, "a policy that always does the same shows nothing"

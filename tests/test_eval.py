"""`sampleforge eval` and the policy that was trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sampleforge.api import load_policy, train
from sampleforge.cli import main
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AppoConfig


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(
        AppoConfig(
            env="CartPole-v1",
            run_dir=str(run),
            seed=5,
            serial=True,
            quiet=True,
            train_for_env_steps=3000,
            num_envs_per_worker=8,
            model=ModelConfig(core="gru", core_size=8),
        )
    )
    return run


@pytest.mark.parametrize("how", [[], ["--stochastic"]])
def test_the_last_line_is_json_and_repeats_with_the_seed(
    capsys: pytest.CaptureFixture[str], trained: Path, how: list[str]
) -> None:
    """Twenty episodes on sixteen rows; nothing is left in the current directory."""
    results = []
    for seed in "778":
        assert main(["eval", str(trained), "--episodes", "20", "--seed", seed, *how]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    first, again, other = results
    assert first["episodes"] == 20 and first["return_std"] > 0
    assert 8 < first["return_mean"] == first["length_mean"] <= 500
    assert again == first
    assert other["return_mean"] != first["return_mean"]


def test_what_cannot_be_evaluated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, trained: Path
) -> None:
    assert main(["eval", str(trained.parent / "rum")]) == 2
    assert f"did you mean {trained}?" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    assert main(["eval", str(tmp_path)]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_run_may_be_moved(trained: Path) -> None:
    """Nothing in its folder names where it was."""
    texts = [*trained.glob("*.yaml"), *trained.glob("*.json"), *trained.glob("checkpoints/*.json")]
    assert all(str(trained) not in path.read_text() for path in texts)


def test_the_loaded_policy_carries_its_state(trained: Path) -> None:
    policy = load_policy(trained)
    obs = np.zeros(4, np.float32)
    action, state = policy.act(obs)
    assert action in (0, 1) and state.shape == (1, 8)
    _, later = policy.act(obs, state)
    assert not torch.equal(state, later), "the second step goes on from the first"
    assert torch.equal(policy.act(obs)[1], state), "without a state an episode begins"
    with pytest.raises(ValueError, match=r"is \(3,\), expected \(4,\)"):
        policy.act(obs[:3])

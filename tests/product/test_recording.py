"""What a run samples is recorded, with the density of each action."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sampleforge.api import train
from sampleforge.data.dataset import open_dataset
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.topologies.config_classes import config_class
from tests.support.product import SMALL, small

SAMPLED = [algo for algo in SMALL if config_class(algo).topology != "stored"]


@pytest.mark.parametrize("algo", SAMPLED)
def test_a_run_is_recorded_with_the_density_of_each_action(algo: str, tmp_path: Path) -> None:
    record = tmp_path / "data"
    train(small(algo, tmp_path / "run", tmp_path, record=str(record)))
    dataset = open_dataset(record)
    episodes = list(dataset.episodes())
    assert sum(len(episode.rewards) for episode in episodes) > 1000
    for episode in episodes:
        assert episode.log_probs is not None and np.isfinite(episode.log_probs).all()


@pytest.mark.parametrize(("algo", "drawn"), [("sac", True), ("td3", False)])
def test_the_density_of_squashed_actions_follows_from_the_parameters(
    algo: str, drawn: bool, tmp_path: Path
) -> None:
    record, run = tmp_path / "data", tmp_path / "run"
    train(small(algo, run, tmp_path, record=str(record), learning_starts=400))
    dataset = open_dataset(record)
    independent = []
    for episode in dataset.episodes():
        assert episode.parameters is not None and episode.log_probs is not None
        assert episode.independent is not None
        actions = {n: torch.from_numpy(leaf) for n, leaf in episode.actions.items()}
        distribution = ActionDistribution(
            dataset.spec.actions, torch.from_numpy(episode.parameters), squash=True
        )
        wanted = distribution.log_prob(actions)
        torch.testing.assert_close(torch.from_numpy(episode.log_probs), wanted)
        independent.append(episode.independent)
    share = np.concatenate(independent).mean()
    assert (0.5 < share < 1) if drawn else share == 0, "uniform actions are not of the policy"


@pytest.mark.parametrize("algo", ["sac", "crossq", "td3"])
def test_what_was_recorded_is_learned_from_beside_new_experience(algo: str, tmp_path: Path) -> None:
    record = tmp_path / "data"
    train(small("sac", tmp_path / "first", tmp_path, record=str(record)))
    inputs = (str(record), "live=0.5")
    result = train(small(algo, tmp_path / "run", tmp_path, input=inputs))
    assert result.summary["updates"] > 50

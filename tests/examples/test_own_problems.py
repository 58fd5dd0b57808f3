"""Problems of one's own, each of which takes a few lines beyond the environment. `examples/` has a
loss, an algorithm, an encoder, a distribution, a curriculum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import sampleforge as sf
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.env.wrapped import make
from sampleforge.run.folder.checkpoint import CheckpointStore

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "serial": True, "quiet": True, "seed": 1, "num_workers": 1},
    **{"train_for_env_steps": 3000, "batch_size": 512, "report_interval": 1.0},
}


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Pretrained(nn.Module):
    """A network that was trained elsewhere and stays as it is, and a layer that learns."""

    def __init__(self, observations: Mapping[str, Any], config: sf.ModelConfig) -> None:
        super().__init__()
        self.known = nn.Linear(4, 16)
        self.known.load_state_dict({"weight": torch.ones(16, 4), "bias": torch.arange(16.0)})
        self.known.requires_grad_(False)
        self.learned = nn.Linear(16, 8)
        self.out_features = 8

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self.learned(self.known(obs["obs"]).tanh())
        return features


def test_a_pretrained_network_stays_as_it_is(tmp_path: Path) -> None:
    model = sf.ModelConfig(encoder=f"{__name__}:Pretrained")
    sf.train(sf.AppoConfig(**SMALL, run_dir=str(tmp_path), model=model))
    loaded = CheckpointStore(tmp_path / "checkpoints", 1).load(log=print)
    assert loaded is not None
    weights = {n: x for n, x in loaded[0].tensors.items() if n.startswith("model/actor.encoder.")}
    assert torch.equal(weights["model/actor.encoder.known.weight"], torch.ones(16, 4))
    assert len(weights) == 4


def warmup(progress: float) -> float:
    """Rise over the first half of the training, then stay."""
    return 1e-3 * min(1.0, 2 * progress)


def test_a_schedule_of_ones_own_is_followed(tmp_path: Path) -> None:
    schedule = {"learning_rate": f"{__name__}:warmup", "gamma": "linear:0.9:0.99"}
    sf.train(sf.AppoConfig(**SMALL, run_dir=str(tmp_path), anneal=schedule))
    found = [report for report in reports(tmp_path) if "gamma" in report]
    assert found[0]["learning_rate"] < found[-1]["learning_rate"] == 1e-3
    assert 0.9 < found[0]["gamma"] < found[-1]["gamma"] < 0.99


class Fuel(gym.Wrapper[Any, Any, Any, Any]):
    """Tells in its info how much is left."""

    def step(self, action: Any) -> Any:
        *step, info = self.env.step(action)
        self.left = getattr(self, "left", 100.0) - 0.5
        return *step, {**info, "fuel": self.left}

    def reset(self, **kwargs: Any) -> Any:
        self.left = 100.0
        return self.env.reset(**kwargs)


class FuelLeft(sf.Callback):
    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        episode.custom_metrics["fuel"] = episode.info["fuel"]
        assert episode.custom_metrics["fuel"] == 100.0 - 0.5 * episode.length


class Half(gym.RewardWrapper[Any, Any]):
    def __init__(self, env: Any, factor: float = 0.5) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


def test_wrappers_by_name_and_metrics_from_the_info(tmp_path: Path) -> None:
    wrappers = [{f"{__name__}:Half": {"factor": 0.25}}, f"{__name__}:Fuel"]
    given: dict[str, Any] = {"id": "CartPole-v1", "wrappers": wrappers}
    setting = {**SMALL, "env": "sampleforge.env.wrapped:make", "env_kwargs": given}
    sf.train(sf.AppoConfig(**setting, run_dir=str(tmp_path)), [FuelLeft()])
    last = reports(tmp_path)[-1]
    assert last["return_mean"] == pytest.approx(0.25 * last["length_mean"])
    assert (
        0.0 < last["custom_fuel_min"] < last["custom_fuel_mean"] < last["custom_fuel_max"] < 100.0
    )


def test_wrappers_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no function 'Missing'"):
        make("CartPole-v1", ["gymnasium.wrappers:Missing"])
    with pytest.raises(ConfigError, match="returned a str, but must return a gymnasium Env"):
        make("CartPole-v1", ["builtins:str"])
    env = make("CartPole-v1", ["gymnasium.wrappers:TimeAwareObservation"], sutton_barto_reward=True)
    assert env.observation_space.shape == (5,)
    assert np.asarray(env.reset(seed=1)[0]).shape == (5,)


def test_it_is_evaluated_in_another_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line, as everything else here can be."""
    flags = "--serial --quiet --seed 1 --num-workers 1 --train-for-env-steps 2000"
    other = "--evaluate-interval 1000 --evaluate-episodes 2 --evaluate-env-kwargs"
    command = f"train appo --env CartPole-v1 {flags} {other} sutton_barto_reward=true"
    assert main([*command.split(), "--run-dir", str(tmp_path)]) == 0
    evaluated = [r["eval_return_mean"] for r in reports(tmp_path) if "eval_return_mean" in r]
    assert evaluated and set(evaluated) == {-1.0}, "only the last step has a reward there"

"""A small run of every algorithm on its topology, of which the tests of the product ask alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.config_classes import config_class

CRITICS: dict[str, Any] = {
    "env": "Pendulum-v1",
    "num_workers": 1,
    "rollout": 16,
    "learning_starts": 200,
    "replay_capacity": 5_000,
    "batch_size": 32,
    "updates_per_env_step": 0.125,
}
SMALL: dict[str, dict[str, Any]] = {
    "appo": {
        "batch_size": 256,
        "minibatch_size": 128,
        "rollout": 32,
        "num_workers": 1,
        "rnd_coeff": 0.1,
    },
    "pqn": {"batch_size": 256, "minibatch_size": 128, "rollout": 32, "num_workers": 1},
    "ddppo": {
        "batch_size": 256,
        "minibatch_size": 128,
        "rollout": 32,
        "num_ranks": 1,
        "rnd_coeff": 0.1,
    },
    "apex": {
        "num_workers": 1,
        "rollout": 16,
        "learning_starts": 200,
        "replay_capacity": 5_000,
        "batch_size": 32,
        "samples_per_insert": 4.0,
    },
    "sac": CRITICS,
    "crossq": CRITICS,
    "td3": CRITICS,
    "marwil": {"batch_size": 64},
    "tests.support.outside:A2cConfig": {"batch_size": 256, "rollout": 32, "num_workers": 1},
    "tests.support.outside:SoftConfig": {
        "num_workers": 1,
        "rollout": 16,
        "learning_starts": 200,
        "replay_capacity": 5_000,
        "batch_size": 32,
        "samples_per_insert": 4.0,
    },
}
"""Of each algorithm, two from outside of the package among them: what makes a run of it small. By
its line here a new algorithm is asked all that these tests ask."""
ENV_STEPS = 1536
RETURNS = {"CartPole-v1": (8.0, 500.0), "Pendulum-v1": (-2000.0, 0.0)}
"""The lowest and the highest return of an episode of each environment of these runs."""


def is_possible(algo: str, mean_return: float) -> bool:
    """Whether a mean return can be that of the environment of an algorithm's small run."""
    low, high = RETURNS[SMALL[algo].get("env", "CartPole-v1")]
    return low <= mean_return <= high


def small(algo: str, folder: Path, data: Path, **more: Any) -> AnyConfig:
    """The config of a small serial run in ``folder``. ``data``: a dataset, for those that learn
    from recorded data alone."""
    cls = config_class(algo)
    setting: dict[str, Any] = {
        "env": "CartPole-v1",
        "run_dir": str(folder),
        "seed": 1,
        "serial": True,
        "quiet": True,
        "device": "cpu",
        "train_for_env_steps": ENV_STEPS,
        "model": ModelConfig(hidden_sizes=(16,)),
        **({"num_envs_per_worker": 8} if cls.topology != "stored" else {}),
        **({"input": (str(data),)} if cls.topology == "stored" else {}),
        **SMALL[algo],
        **more,
    }
    config: AnyConfig = cls(**setting)
    return config


def record_data(folder: Path) -> None:
    """Record a dataset of CartPole."""
    asked = small("appo", folder.parent / "recording", folder, record=str(folder))
    train(asked)

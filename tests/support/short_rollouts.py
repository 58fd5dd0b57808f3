"""A small APPO run whose rollouts may be cut short."""

from __future__ import annotations

from sampleforge.models.config import ModelConfig
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import resolved, spec_of

ROLLOUT = 8


def config(core: str = "none", **kwargs: object) -> AppoConfig:
    chosen = AppoConfig(
        **{
            "env": "tests.support.envs:CodeEnv",
            "num_workers": 1,
            "num_envs_per_worker": 6,
            "num_splits": 2,
            "rollout": ROLLOUT,
            "advantage": "gae",
            "async_rl": False,
            "num_epochs": 1,
            "debug": True,
            "model": ModelConfig(hidden_sizes=(8,), core=core, core_size=8),  # type: ignore[arg-type]
            **kwargs,
        }  # type: ignore[arg-type]
    )
    return resolved(chosen, spec_of(chosen))

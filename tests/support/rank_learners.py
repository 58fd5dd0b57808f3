"""Learners of several ranks, and the batches that they share."""

from __future__ import annotations

import dataclasses
from functools import cache

import torch

from sampleforge.algorithms.averaging import Averaging, DataParallel
from sampleforge.algorithms.experience import WHOLE, Share
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.builders import seeded
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import resolved, rollouts, spec_of
from tests.support.pairings import seeded_model

UPDATES = 20


def config(**kwargs: object) -> AppoConfig:
    chosen = AppoConfig(
        **{
            "env": "tests.support.envs:CodeEnv",
            "num_workers": 1,
            "num_envs_per_worker": 8,
            "num_splits": 1,
            "rollout": 8,
            "async_rl": True,
            "learning_rate": 1e-3,
            "num_epochs": 2,
            "normalise_returns": True,
            "model": ModelConfig(hidden_sizes=(16,), core_size=8),
            **kwargs,
        }  # type: ignore[arg-type]
    )
    return resolved(chosen, spec_of(chosen))


def learner_of(
    config: AppoConfig,
    averaging: DataParallel | None = None,
    batch_size: int | None = None,
    share: Share = WHOLE,
) -> RolloutLearner:
    spec = spec_of(config)
    place = LearnerPlace(
        torch.device("cpu"),
        seed=1,
        averaging=averaging or Averaging(),
        batch_size=batch_size,
        share=share,
        spec=spec,
    )
    model = seeded_model(config.model, spec, seed=1)
    with seeded(2):
        return RolloutLearner(model, PpoLoss(config, config.gamma), config, place)


def model_of(core: object) -> ModelConfig:
    return ModelConfig(hidden_sizes=(16,), core_size=8, core=core)  # type: ignore[arg-type]


@cache
def batches(core: str) -> list[Batch]:
    """One per update, 8 rows each, with rows that do not count among them."""
    return list(rollouts(config(model=model_of(core)), UPDATES))


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """Some of the rows of a batch."""

    def cut(name: str, column: object) -> object:
        if isinstance(column, dict):
            return {leaf: cut(leaf, x) for leaf, x in column.items()}
        if not isinstance(column, torch.Tensor):
            return column
        return column[start:stop] if name == "state" else column[:, start:stop]

    columns = {f.name: cut(f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    return Batch(**columns)  # type: ignore[arg-type]


Learned = tuple[dict[str, torch.Tensor], dict[str, float]]
"""A learner's tensors at the end, and what it said of its last update."""


def learned(learner: RolloutLearner, parts: list[Batch]) -> Learned:
    metrics: dict[str, float] = {}
    trained = 0
    for number, part in enumerate(parts):
        metrics, trained, _ = learner.update(part, progress=number / UPDATES)
    return learner.state()[0], {**metrics, "own_trained_steps": trained}

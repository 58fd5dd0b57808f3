"""A small learner of APPO, and experience for it."""

from __future__ import annotations

import torch

from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import resolved, rollouts, spec_of
from tests.support.pairings import seeded_model

CPU = torch.device("cpu")
SMALL = ModelConfig(hidden_sizes=(16,), core_size=8, cnn_features=16)


def config(**kwargs: object) -> AppoConfig:
    chosen = AppoConfig(
        **{
            "env": "tests.support.envs:CodeEnv",
            "num_workers": 1,
            "num_envs_per_worker": 4,
            "num_splits": 2,
            "learner_threads": 1,  # several add up in another order: 1.1e-5 instead of 1e-6
            "rollout": 8,
            "batch_size": 64,
            "async_rl": True,
            "learning_rate": 1e-3,
            "model": SMALL,
            **kwargs,
        }  # type: ignore[arg-type]
    )
    return resolved(chosen, spec_of(chosen))


def model_of(config: AppoConfig) -> ActorCritic:
    return seeded_model(config.model, spec_of(config), seed=1)


def learner_of(
    config: AppoConfig, device: torch.device = CPU, model: ActorCritic | None = None
) -> RolloutLearner:
    return RolloutLearner(
        model_of(config) if model is None else model,
        PpoLoss(config, config.gamma),
        config,
        LearnerPlace(device, seed=1, spec=spec_of(config)),
    )


def one_batch(config: AppoConfig) -> Batch:
    return next(rollouts(config, 1))

"""The record of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.learner import LEARNER_HYPERPARAMETERS, PpoLearner
from sampleforge.algorithms.ppo.loss import APPO_LOSS_HYPERPARAMETERS, AppoLoss
from sampleforge.algorithms.sampling import sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.rollouts.slots import ACTOR_CRITIC
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    model = ActorCritic(config.model, spec.observations, spec.actions)
    if config.normalise_returns:
        model.value_scale.zero_()  # until the first reward: see `algorithms.return_scale`
    return model


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> PpoLearner:
    loss = AppoLoss(config, config.gamma, normalises_returns=config.normalise_returns)
    return PpoLearner(network, loss, config, place)


def _new_acting(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace
) -> Acting:
    return sampling(network, weights, place, getattr(config, "noise_correlation", 0.0))


def _columns(config: Any) -> Mapping[str, str]:
    return ACTOR_CRITIC


def _whole_rollouts(config: Any) -> bool:
    """V-trace goes through a rollout from its end to its beginning, and a core from its
    beginning."""
    return bool(config.advantage == "vtrace" or config.model.core != "none")


PPO = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=_new_acting,
    columns=_columns,
    changeable=(*LEARNER_HYPERPARAMETERS, *APPO_LOSS_HYPERPARAMETERS),
    whole_rollouts=_whole_rollouts,
)

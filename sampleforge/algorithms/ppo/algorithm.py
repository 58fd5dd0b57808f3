"""The record of PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.ppo.loss import PPO_LOSS_HYPERPARAMETERS, PpoLoss
from sampleforge.algorithms.rollout_learner import LEARNER_HYPERPARAMETERS, RolloutLearner
from sampleforge.algorithms.sampling import sampling
from sampleforge.config import ConfigError, typed
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.rollouts.slots import ACTOR_CRITIC
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    model = ActorCritic(config.model, spec.observations, spec.actions)
    if model.has_own_distribution:
        _check_distribution(config, model)
    if config.normalise_returns:
        model.value_scale.zero_()  # until the first reward: see `algorithms.return_scale`
    return model


def _check_distribution(config: Any, model: ActorCritic) -> None:
    """Raise ConfigError if the loss takes something of the actions' distribution that the user's
    own class does not compute."""
    assert model.head is not None
    found = type(model.masked_distribution(torch.zeros(1, model.head.num_parameters), None))
    for name, field, value in (
        ("kl", "lr_schedule", "kl_adaptive"),
        ("symmetric_kl_to_uniform", "exploration", "symmetric_kl"),
    ):
        is_inherited = getattr(found, name) is getattr(ActionDistribution, name)
        if is_inherited and getattr(config, field, None) == value:
            flag = typed(field, value)
            raise ConfigError(
                f"{flag} --model.head {config.model.head}: {found.__qualname__} has no {name} of "
                f"its own; write it, or leave out {flag}"
            )


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> RolloutLearner:
    loss = PpoLoss(config, config.gamma, normalises_returns=config.normalise_returns)
    return RolloutLearner(network, loss, config, place)


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
    changeable=(*LEARNER_HYPERPARAMETERS, *PPO_LOSS_HYPERPARAMETERS),
    whole_rollouts=_whole_rollouts,
)

"""The records of the project's algorithms: what each gives to the topology that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sampleforge.algos import dqn
from sampleforge.algos.acting import Acting, ActingPlace
from sampleforge.algos.algorithm import Algorithm, LearnerPlace
from sampleforge.algos.config import DqnConfig
from sampleforge.algos.dqn_learner import DqnLearner
from sampleforge.algos.epsilon_greedy import epsilon_greedy
from sampleforge.algos.hyperparameters import (
    APPO_LOSS_HYPERPARAMETERS,
    DQN_HYPERPARAMETERS,
    LEARNER_HYPERPARAMETERS,
    MARWIL_HYPERPARAMETERS,
)
from sampleforge.algos.marwil import MarwilLearner
from sampleforge.algos.ppo.loss import AppoLoss
from sampleforge.algos.ppo_learner import PpoLearner
from sampleforge.algos.sampling import sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.models.value_distribution import value_distribution
from sampleforge.ops.exploration import epsilon_ladder
from sampleforge.rollouts.slots import ACTOR_CRITIC
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import EnvSpec


def new_actor_critic(config: Any, spec: EnvSpec) -> ActorCritic:
    """Return an actor-critic with initial weights from torch's global generator."""
    return ActorCritic(config.model, spec.observations, spec.actions)


def _new_ppo_network(config: Any, spec: EnvSpec) -> ActorCritic:
    model = new_actor_critic(config, spec)
    if config.normalise_returns:
        model.value_scale.zero_()  # until the first reward: see `algos.return_scale`
    return model


def _new_q_network(config: Any, spec: EnvSpec) -> QNetwork:
    network = QNetwork(
        config.model,
        spec.observations,
        spec.actions,
        dueling=config.dueling,
        head_size=config.head_size or 0,
        noisy_sigma=config.noisy_sigma if config.noisy_nets else 0.0,
        value_distribution=value_distribution(config, bool(config.value_rescaling)),
    )
    if config.normalise_returns:
        network.value_scale.zero_()  # until the first reward: see `algos.return_scale`
    return network


def _new_sampling(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace
) -> Acting:
    return sampling(network, weights, place, getattr(config, "noise_correlation", 0.0))


def _new_epsilon_greedy(
    config: Any, network: QNetwork, weights: SharedWeights, place: ActingPlace
) -> Acting:
    return epsilon_greedy(network, weights, place, config.weights_refresh_interval)


def _new_ppo_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> PpoLearner:
    loss = AppoLoss(config, config.gamma, normalises_returns=config.normalise_returns)
    return PpoLearner(
        network,
        loss,
        config,
        device=place.device,
        precision=place.precision,
        seed=place.seed,
        averaging=place.averaging,
        batch_size=place.batch_size,
        share=place.share,
    )


def _new_q_learner(config: Any, network: QNetwork, place: LearnerPlace) -> DqnLearner:
    return DqnLearner(
        network,
        config,
        device=place.device,
        precision=place.precision,
        noise_seed=place.noise_seed,
        averaging=place.averaging,
    )


def _new_imitation_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> MarwilLearner:
    return MarwilLearner(
        network,
        config,
        device=place.device,
        precision=place.precision,
        averaging=place.averaging,
    )


def _actor_critic_columns(config: Any) -> Mapping[str, str]:
    return ACTOR_CRITIC


def _whole_rollouts(config: Any) -> bool:
    """V-trace goes through a rollout from its end to its beginning, and a core from its
    beginning."""
    return bool(config.advantage == "vtrace" or config.model.core != "none")


def _epsilons(config: DqnConfig, count: int) -> torch.Tensor:
    return epsilon_ladder(count, config.base_epsilon, config.epsilon_exponent)


PPO = Algorithm(
    new_network=_new_ppo_network,
    new_learner=_new_ppo_learner,
    new_acting=_new_sampling,
    columns=_actor_critic_columns,
    changeable=(*LEARNER_HYPERPARAMETERS, *APPO_LOSS_HYPERPARAMETERS),
    whole_rollouts=_whole_rollouts,
)
DQN = Algorithm(
    new_network=_new_q_network,
    new_learner=_new_q_learner,
    new_acting=_new_epsilon_greedy,
    columns=dqn.columns,
    changeable=DQN_HYPERPARAMETERS,
    finish_rollout=dqn.FinishRollout,
    exploration=_epsilons,
)
MARWIL = Algorithm(
    new_network=new_actor_critic,
    new_learner=_new_imitation_learner,
    columns=_actor_critic_columns,
    changeable=MARWIL_HYPERPARAMETERS,
)

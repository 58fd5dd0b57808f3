"""The record of DQN."""

from __future__ import annotations

from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.finish_rollout import FinishRollout, columns
from sampleforge.algorithms.dqn.learner import DQN_HYPERPARAMETERS, DqnLearner
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.models.q_heads import value_distribution
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.schedules import epsilon_ladder
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> QNetwork:
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
        network.value_scale.zero_()  # until the first reward: see `algorithms.return_scale`
    return network


def _new_learner(config: Any, network: QNetwork, place: LearnerPlace) -> DqnLearner:
    return DqnLearner(network, config, place)


def _new_acting(
    config: Any, network: QNetwork, weights: SharedWeights, place: ActingPlace
) -> Acting:
    return epsilon_greedy(network, weights, place, config.weights_refresh_interval)


def _exploration(config: DqnConfig, count: int) -> torch.Tensor:
    return epsilon_ladder(count, config.base_epsilon, config.epsilon_exponent)


DQN = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=_new_acting,
    columns=columns,
    changeable=DQN_HYPERPARAMETERS,
    finish_rollout=FinishRollout,
    exploration=_exploration,
)

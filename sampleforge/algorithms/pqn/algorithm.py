"""The record of PQN."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.pqn.config import PqnLossConfig
from sampleforge.algorithms.pqn.loss import HYPERPARAMETERS, PqnLoss
from sampleforge.algorithms.rollout_learner import LEARNER_HYPERPARAMETERS, RolloutLearner
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.schedules import between
from sampleforge.shared.counters import Progress
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> QNetwork:
    network = QNetwork(
        config.model,
        spec.observations,
        spec.actions,
        dueling=config.dueling,
        head_size=config.head_size,
        in_returns_unit=True,
    )
    if config.normalise_returns:
        network.value_scale.zero_()  # until the first reward: see `algorithms.return_scale`
    return network


def _new_learner(config: Any, network: QNetwork, place: LearnerPlace) -> RolloutLearner:
    return RolloutLearner(network, PqnLoss(config, config.gamma), config, place)


def falling_epsilon(config: PqnLossConfig, progress: Progress) -> float:
    """Return the probability of a random action now, which falls linearly over the first
    ``epsilon_env_steps`` env steps of the run."""
    assert config.epsilon_env_steps is not None, "resolve_defaults comes first"
    passed = progress.env_steps / config.epsilon_env_steps
    return between(config.epsilon_first, config.epsilon_last, passed)


def _new_acting(
    config: Any, network: QNetwork, weights: SharedWeights, place: ActingPlace
) -> Acting:
    assert place.progress is not None
    epsilon = partial(falling_epsilon, config, place.progress)
    return epsilon_greedy(network, weights, place, refresh_interval=1, epsilon=epsilon)


def _columns(config: Any) -> Mapping[str, str]:
    """The largest Q-value, and that of the action taken."""
    return {"value": "float32", "taken": "float32"}


PQN = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=_new_acting,
    columns=_columns,
    changeable=(*LEARNER_HYPERPARAMETERS, *HYPERPARAMETERS),
)

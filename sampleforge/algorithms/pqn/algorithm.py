"""The record of PQN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm, LearnerPlace
from sampleforge.algorithms.epsilon_greedy import epsilon_greedy
from sampleforge.algorithms.hyperparameters import LEARNER_HYPERPARAMETERS
from sampleforge.algorithms.ppo.learner import PpoLearner
from sampleforge.algorithms.pqn.loss import HYPERPARAMETERS, PqnLoss
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


def _new_learner(config: Any, network: QNetwork, place: LearnerPlace) -> PpoLearner:
    return PpoLearner(
        network,
        PqnLoss(config, config.gamma),
        config,
        device=place.device,
        precision=place.precision,
        seed=place.seed,
        averaging=place.averaging,
        batch_size=place.batch_size,
        share=place.share,
    )


@dataclass(frozen=True)
class FallingEpsilon:
    """The probability of a random action, which falls linearly over the first
    ``epsilon_env_steps`` env steps of the run."""

    config: Any
    progress: Progress

    def __call__(self) -> float:
        """Return the probability now."""
        config, passed = self.config, self.progress.env_steps / self.config.epsilon_env_steps
        return between(config.epsilon_first, config.epsilon_last, passed)


def _new_acting(
    config: Any, network: QNetwork, weights: SharedWeights, place: ActingPlace
) -> Acting:
    assert place.progress is not None
    epsilon = FallingEpsilon(config, place.progress)
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

"""The record of MARWIL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.marwil.learner import MARWIL_HYPERPARAMETERS, MarwilLearner
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.rollouts.slots import ACTOR_CRITIC
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    """Return an actor-critic with initial weights from torch's global generator."""
    return ActorCritic(config.model, spec.observations, spec.actions)


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> MarwilLearner:
    return MarwilLearner(network, config, place)


def _columns(config: Any) -> Mapping[str, str]:
    return ACTOR_CRITIC


MARWIL = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    columns=_columns,
    changeable=MARWIL_HYPERPARAMETERS,
)

"""The records of soft actor-critic and CrossQ."""

from __future__ import annotations

import dataclasses
from typing import Any

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.correlated_noise import correlated_noise
from sampleforge.algorithms.critics_learner import new_critics
from sampleforge.algorithms.exploring import no_extra_columns, uniform_first
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.sac.crossq_learner import CROSSQ_HYPERPARAMETERS, CrossqLearner
from sampleforge.algorithms.sac.learner import SAC_HYPERPARAMETERS, SacLearner
from sampleforge.algorithms.sampling import Stochastic
from sampleforge.algorithms.windows import WriteWindows
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    return ActorCritic(config.model, spec.observations, spec.actions, has_values=False)


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> SacLearner:
    return SacLearner(network, new_critics(config, place), config, place)


def _new_crossq_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> CrossqLearner:
    return CrossqLearner(network, new_critics(config, place, renormed=True), config, place)


def _new_acting(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace
) -> Acting:
    noise = correlated_noise(config.noise_correlation, network, place)
    return uniform_first(config, network, weights, place, Stochastic(place.generator, noise))


SAC = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=_new_acting,
    columns=no_extra_columns,
    changeable=SAC_HYPERPARAMETERS,
    finish_rollout=WriteWindows,
    estimates_errors=False,
)
CROSSQ = dataclasses.replace(
    SAC, new_learner=_new_crossq_learner, changeable=CROSSQ_HYPERPARAMETERS
)
"""Its policy, and how that acts, is SAC's."""

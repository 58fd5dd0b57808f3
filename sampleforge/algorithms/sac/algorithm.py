"""The record of soft actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sampleforge.algorithms.algorithm import Algorithm, LearnerPlace
from sampleforge.algorithms.sac.acting import new_acting
from sampleforge.algorithms.sac.learner import SAC_HYPERPARAMETERS, SacLearner
from sampleforge.algorithms.windows import MakeWindows
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics
from sampleforge.replay.config import ReplayConfig
from sampleforge.replay.items import write_items
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import EnvSpec


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    return ActorCritic(config.model, spec.observations, spec.actions, has_values=False)


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> SacLearner:
    spec = place.spec
    critics = Critics(config.model, spec.observations, spec.actions, config.num_critics)
    return SacLearner(network, critics, config, place)


@dataclass(frozen=True)
class WriteWindows:
    """Adds n-step windows to an actor's complete rollout, and the same first priority to each of
    its transitions: an actor has no critics from which another would follow."""

    config: ReplayConfig
    weights: SharedWeights | None = None

    def __call__(self, slots: TrajectorySlots, slot: int) -> None:
        make = MakeWindows(self.config, slots.shape.drops_truncated)
        reward = slots.reward[slot]
        windows = make(reward, slots.terminated[slot], slots.truncated[slot], slots.valid[slot])
        write_items(slots, slot, windows, np.ones_like(reward))


def _columns(config: Any) -> Mapping[str, str]:
    return {}


SAC = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=new_acting,
    columns=_columns,
    changeable=SAC_HYPERPARAMETERS,
    finish_rollout=WriteWindows,
)

"""What an algorithm is: one record, which a topology asks for the parts that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.learning import Learner, LearnerPlace
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec

FinishRollout = Callable[[TrajectorySlots, int], None]
"""Completes the rollout in a slot, given the slots and its index."""


def never(config: Any) -> bool:
    """Return False, for any config."""
    return False


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, whatever the topology that it runs on. Each function takes the complete config
    of the run, with resolved defaults, and is one of a module, so that it can be sent to workers.

    ``new_network(config, spec)`` returns the network that is published, with initial weights from
    torch's global generator: all that acting, evaluations, exports and populations see.
    ``new_learner(config, network, place)`` returns the learner of a network. ``new_acting(config,
    network, weights, place)`` returns the policy that acts with the newest of the shared weights
    (None: nothing acts, it learns from recorded data alone). ``columns(config)``: what acting
    records beside observation, action, reward and flags, columns [T, rows] of a slot, name ->
    dtype. ``changeable``: the fields of the config that the learner can change during the training.
    ``whole_rollouts(config)``: whether a minibatch has whole rollouts, in their order in time.
    ``finish_rollout(config, weights)`` returns what completes the items of a replay where a rollout
    ends, in the actor (None: it does not learn from a replay). ``estimates_errors``: whether that
    includes the TD error of each item, from which its first priority follows. ``exploration(config,
    count)`` returns the exploration of ``count`` env rows, float32 [count], the largest first
    (None: all rows explore alike).
    """

    new_network: Callable[[Any, EnvSpec], ActorCritic | QNetwork]
    new_learner: Callable[[Any, Any, LearnerPlace], Learner]
    columns: Callable[[Any], Mapping[str, str]]
    changeable: tuple[str, ...]
    new_acting: Callable[[Any, Any, SharedWeights, ActingPlace], Acting] | None = None
    whole_rollouts: Callable[[Any], bool] = never
    finish_rollout: Callable[[Any, SharedWeights], FinishRollout] | None = None
    estimates_errors: bool = True
    exploration: Callable[[Any, int], torch.Tensor] | None = None

    def hyperparameters(self, config: Any) -> dict[str, Any]:
        """Return the values of the fields that can change during the training, by name."""
        return {name: getattr(config, name) for name in self.changeable}

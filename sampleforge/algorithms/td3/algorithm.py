"""The record of TD3."""

from __future__ import annotations

from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.correlated_noise import CorrelatedNoise, correlated_noise
from sampleforge.algorithms.critics_learner import new_critics
from sampleforge.algorithms.exploring import box_leaves, no_extra_columns, uniform_first
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.td3.config import Td3LossConfig
from sampleforge.algorithms.td3.learner import TD3_HYPERPARAMETERS, Td3Learner, set_noise
from sampleforge.algorithms.windows import WriteWindows
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import unit_actions
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, bounds_of
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import EnvSpec


class NoisyMode(Chooser):
    """Chooses the policy's action with Gaussian noise, in units of the bounds, to which it is
    clipped. ``sizes`` float32 [env rows of the run]: standard deviations. ``noise``: of standard
    deviation 1, if it is not independent."""

    def __init__(
        self,
        layout: ActionLayout,
        generator: torch.Generator,
        sizes: torch.Tensor,
        noise: CorrelatedNoise | None = None,
    ) -> None:
        self._layout = layout
        self._generator = generator
        self._sizes = sizes
        self._noise = noise

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        mean = unit_actions(self._layout, distribution.mode())
        if self._noise is None:
            noise = torch.empty_like(mean).normal_(generator=self._generator)
        else:
            noise = self._noise.draw(rows, is_first)
        unit = (mean + self._sizes[rows].unsqueeze(-1) * noise).clamp(-1.0, 1.0)
        low, high = bounds_of(self._layout, mean.device)
        return box_leaves(self._layout, low + (high - low) * (1.0 + unit) / 2)

    def recorded(
        self, distribution: ActionDistribution, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of the network's distribution. The actions were not drawn from
        it."""
        none = torch.zeros_like(rows, dtype=torch.bool)
        return {"parameters": distribution.parameters, "independent": none}


def _new_network(config: Any, spec: EnvSpec) -> ActorCritic:
    network = ActorCritic(config.model, spec.observations, spec.actions, has_values=False)
    assert network.log_std is not None
    network.log_std.requires_grad_(False)
    set_noise(network, config)
    return network


def _new_learner(config: Any, network: ActorCritic, place: LearnerPlace) -> Td3Learner:
    return Td3Learner(network, new_critics(config, place), config, place)


def _new_acting(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace
) -> Acting:
    ladder = torch.zeros(place.num_rows) if place.ladder is None else place.ladder
    sizes = ladder.to(place.device, torch.float32)
    noise = correlated_noise(config.noise_correlation, network, place)
    choose = NoisyMode(network.layout, place.generator, sizes, noise)
    return uniform_first(config, network, weights, place, choose)


def _exploration(config: Td3LossConfig, count: int) -> torch.Tensor:
    """The noise of each env row: a geometric ladder around that of the middle one."""
    steps = torch.linspace(1.0, -1.0, count) if count > 1 else torch.zeros(1)
    return config.exploration_noise * config.exploration_spread**steps


TD3 = Algorithm(
    new_network=_new_network,
    new_learner=_new_learner,
    new_acting=_new_acting,
    columns=no_extra_columns,
    changeable=TD3_HYPERPARAMETERS,
    finish_rollout=WriteWindows,
    estimates_errors=False,
    exploration=_exploration,
)

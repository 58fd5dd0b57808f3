"""Acting by samples from the distribution of an actor-critic."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.correlated_noise import CorrelatedNoise
from sampleforge.algorithms.direct_acting import DirectActing
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.shared.newest import SharedWeights


class Stochastic:
    """Chooses actions by sampling from their distribution. ``noise``: of Box actions, if it is not
    independent."""

    def __init__(self, generator: torch.Generator, noise: CorrelatedNoise | None = None) -> None:
        self._generator = generator
        self._noise = noise

    def begin(self) -> None:
        """Nothing changes from step to step."""

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        noise = None if self._noise is None else self._noise.draw(rows, is_first)
        return distribution.sample(self._generator, noise)

    def recorded(
        self, distribution: ActionDistribution, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self._noise is None:
            independent = torch.ones_like(rows, dtype=torch.bool)
        else:
            independent = self._noise.is_independent(rows)
        return {"parameters": distribution.parameters, "independent": independent}


def actor_critic_columns(
    distribution: ActionDistribution, values: torch.Tensor, actions: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the columns of an actor-critic's slots, [B] each."""
    return {"log_prob": distribution.log_prob(actions), "value": values}


def sampling(
    network: ActorCritic,
    weights: SharedWeights,
    place: ActingPlace,
    noise_correlation: float = 0.0,
) -> Acting:
    """Return what samples actions from the distribution of ``network``, in numpy where that can be.
    ``noise_correlation``: of the noise of Box actions, see `CorrelatedNoise`."""
    generator, noise, direct = place.generator, None, None
    if noise_correlation and network.layout.num_boxes:
        size = network.layout.num_boxes
        noise = CorrelatedNoise(noise_correlation, place.num_rows, size, generator)
    if place.is_plain:
        direct = DirectActing.of(network, generator, noise)
    choose = Stochastic(generator, noise)
    return Acting(network, weights, place, choose, actor_critic_columns, direct=direct)

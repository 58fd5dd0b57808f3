"""Acting of soft actor-critic: uniform actions until learning begins, then samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.algorithms.sampling import Stochastic
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.distributions import ActionDistribution, bounds_of
from sampleforge.shared.counters import Progress
from sampleforge.shared.weights import SharedWeights


class UniformFirst:
    """Chooses actions uniformly within their bounds in the first ``until`` env steps of the run,
    and later by samples from their distribution."""

    def __init__(
        self, network: ActorCritic, generator: torch.Generator, progress: Progress, until: int
    ) -> None:
        self._layout = network.layout
        self._generator = generator
        self._progress = progress
        self._until = until
        self._sample = Stochastic(generator)
        self._is_uniform = False

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        self._is_uniform = self._progress.env_steps < self._until
        if not self._is_uniform:
            return self._sample(distribution, is_first, rows)
        device, layout = self._generator.device, self._layout
        low, high = bounds_of(layout, device)
        shape = len(rows), len(low)
        drawn = torch.rand(shape, dtype=low.dtype, device=device, generator=self._generator)
        flat = low + (high - low) * drawn
        return {
            leaf.name: flat[:, leaf.elements].to(leaf.dtype).reshape(len(rows), *leaf.shape)
            for leaf in layout.leaves
        }

    def recorded(
        self, distribution: ActionDistribution, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of the policy's distribution, and whether the actions were drawn
        from it."""
        drawn = torch.full_like(rows, not self._is_uniform, dtype=torch.bool)
        return {"parameters": distribution.parameters, "independent": drawn}


def no_columns(
    distribution: Any, values: torch.Tensor, actions: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return no columns: nothing but observations, actions and rewards is learned from."""
    return {}


def new_acting(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace
) -> Acting:
    """Return what acts in an actor or a policy worker."""
    choose: Chooser = Stochastic(place.generator)
    if place.progress is not None:  # else the actions are given, see `ActingPlace`
        choose = UniformFirst(network, place.generator, place.progress, config.learning_starts)
    interval = config.weights_refresh_interval
    return Acting(network, weights, place, choose, no_columns, refresh_interval=interval)

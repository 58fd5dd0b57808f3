"""Acting of continuous control: uniform actions until learning begins, then those of the policy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, bounds_of
from sampleforge.shared.counters import Progress
from sampleforge.shared.newest import SharedWeights


class UniformFirst:
    """Chooses actions uniformly within their bounds in the first ``until`` env steps of the run;
    later ``then`` chooses."""

    def __init__(
        self,
        layout: ActionLayout,
        generator: torch.Generator,
        progress: Progress,
        until: int,
        then: Chooser,
    ) -> None:
        self._layout = layout
        self._generator = generator
        self._progress = progress
        self._until = until
        self._then = then
        self._is_uniform = False

    def begin(self) -> Hashable:
        """Note whether this step's actions are uniform, and return it, with what the other choice
        depends on."""
        self._is_uniform = self._progress.env_steps < self._until
        return self._is_uniform, self._then.begin()

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if not self._is_uniform:
            return self._then(distribution, is_first, rows)
        low, high = bounds_of(self._layout, self._generator.device)
        drawn = torch.empty((len(rows), len(low)), dtype=low.dtype, device=low.device)
        return box_leaves(
            self._layout, low + (high - low) * drawn.uniform_(generator=self._generator)
        )

    def recorded(
        self, distribution: ActionDistribution, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return what ``then`` says of the last actions; uniform ones were not drawn from the
        policy's distribution."""
        columns = self._then.recorded(distribution, rows)
        if self._is_uniform:
            columns["independent"] = torch.zeros_like(columns["independent"])
        return columns


def box_leaves(layout: ActionLayout, flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the leaves [B, ...] of Box actions [B, number of elements]."""
    return {
        leaf.name: flat[:, leaf.elements].to(leaf.dtype).reshape(len(flat), *leaf.shape)
        for leaf in layout.leaves
    }


def no_columns(
    distribution: Any, values: torch.Tensor, actions: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return no columns: nothing but observations, actions and rewards is learned from."""
    return {}


def no_extra_columns(config: Any) -> dict[str, str]:
    """Return the names and dtypes of `no_columns`."""
    return {}


def uniform_first(
    config: Any, network: ActorCritic, weights: SharedWeights, place: ActingPlace, then: Chooser
) -> Acting:
    """Return what acts as ``then`` chooses, once ``config.learning_starts`` env steps are over."""
    choose = then
    if place.progress is not None:  # else the actions are given, see `ActingPlace`
        choose = UniformFirst(
            network.layout, place.generator, place.progress, config.learning_starts, then
        )
    interval = config.weights_refresh_interval
    return Acting(network, weights, place, choose, no_columns, refresh_interval=interval)

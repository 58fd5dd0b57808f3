"""Exploration: epsilon-greedy actions of a Q-network, and uniform actions until learning begins."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import GreedyActions, QNetwork
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, bounds_of
from sampleforge.shared.counters import Progress
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ACTION


class EpsilonGreedy(Chooser):
    """Chooses the best action, or with probability epsilon any. ``epsilons`` float32 [env rows of
    the run], on the generator's device; ``epsilon`` returns that of all rows at the moment, in
    their place."""

    def __init__(
        self,
        generator: torch.Generator,
        epsilons: torch.Tensor,
        epsilon: Callable[[], float] | None = None,
    ) -> None:
        self._generator = generator
        self._epsilons = epsilons
        self._epsilon = epsilon

    def begin(self) -> None:
        """Put the epsilon of the moment in the place of those of all rows."""
        if self._epsilon is not None:
            self._epsilons.fill_(self._epsilon())

    def __call__(
        self, distribution: GreedyActions, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {ACTION: distribution.explore(self._epsilons[rows], self._generator)}

    def recorded(self, distribution: GreedyActions, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the log-probabilities [B, A], and whether actions are drawn at all: with an
        epsilon of 0, as noisy nets have it by default, an action follows from the network and its
        noise, and says nothing about how likely it was."""
        epsilons = self._epsilons[rows]
        return {"parameters": distribution.log_probs(epsilons), "independent": epsilons > 0}


def q_columns(
    distribution: GreedyActions, values: torch.Tensor, actions: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the columns that first priorities are computed from, [B] each: the value, that of the
    action taken, and the standard deviations of both where the network has distributions."""
    taken = actions[ACTION]
    columns = {"value": values, "taken": _of(distribution.q, taken)}
    if (std := distribution.std) is not None:
        best = distribution.best.actions
        columns |= {"value_std": _of(std, best), "taken_std": _of(std, taken)}
    return columns


def epsilon_greedy(
    network: QNetwork,
    weights: SharedWeights,
    place: ActingPlace,
    refresh_interval: int,
    epsilon: Callable[[], float] | None = None,
) -> Acting:
    """Return what acts epsilon-greedily on ``network``: each env row with its epsilon of the
    place's ladder, or all with the one that ``epsilon`` returns. ``refresh_interval``: see
    `Acting`."""
    ladder = torch.ones(place.num_rows) if place.ladder is None else place.ladder
    epsilons = ladder.to(place.device, torch.float32)
    choose = EpsilonGreedy(place.generator, epsilons, epsilon)
    return Acting(network, weights, place, choose, q_columns, refresh_interval=refresh_interval)


def _of(each: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Return the elements [B] of ``actions`` [B] out of ``each`` [B, A]."""
    return each.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


class UniformFirst(Chooser):
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
    """Return what acts as ``then`` chooses, once ``config.learning_starts`` env steps of each
    policy of the run are over, or at once if the policy is trained already."""
    choose = then
    # Without the progress of a run the actions are given, see `ActingPlace`.
    if place.progress is not None and not place.is_trained:
        until = place.policies * config.learning_starts
        choose = UniformFirst(network.layout, place.generator, place.progress, until, then)
    interval = config.weights_refresh_interval
    return Acting(network, weights, place, choose, no_columns, refresh_interval=interval)

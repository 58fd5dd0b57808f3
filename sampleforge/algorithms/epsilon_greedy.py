"""Acting on a Q-network: the best action, or with probability epsilon any."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.models.q_network import GreedyActions, QNetwork
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ACTION


class EpsilonGreedy:
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

"""The epsilon-greedy policy of a Q-network, with an epsilon and noise of its own for every env
row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.algos.policy import (
    FollowingModel,
    NewSeed,
    PolicyOutput,
    keep_seed,
)
from sampleforge.algos.precision import autocast
from sampleforge.models.noisy import Noise, set_noise
from sampleforge.models.q_network import GreedyActions, QNetwork
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import ACTION


class EpsilonGreedyPolicy(FollowingModel[QNetwork]):
    """The policy that acts epsilon-greedily on a Q-network.

    ``epsilons`` [env rows of the run]. Newer weights are copied after at least ``refresh_interval``
    env steps of this policy. Noisy layers draw new noise for each row and step. ``epsilon`` returns
    the epsilon of all rows at the moment, in place of ``epsilons``."""

    def __init__(
        self,
        model: QNetwork,
        weights: SharedWeights,
        epsilons: torch.Tensor,
        refresh_interval: int,
        *,
        device: torch.device,
        precision: str,
        seed: int,
        new_seed: NewSeed = keep_seed,
        epsilon: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(
            model, weights, device=device, precision=precision, seed=seed, new_seed=new_seed
        )
        set_noise(self._model, Noise(self._generator, per_row=True))
        self._epsilons = epsilons.to(device, torch.float32)
        self._refresh_interval = refresh_interval
        self._acted = refresh_interval
        self._epsilon = epsilon

    def refresh(self) -> None:
        if self._begin_anew() or self._acted >= self._refresh_interval:
            self._acted = 0
            super().refresh()
        if self._epsilon is not None:
            self._epsilons.fill_(self._epsilon())

    @torch.inference_mode()
    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        is_first: torch.Tensor,
        rows: torch.Tensor,
    ) -> PolicyOutput:
        with autocast(self._device, self._precision):
            choices, state = self._model.choices(obs, state, is_first)
        actions = self._choose(choices, rows)
        self._acted += len(rows)
        return PolicyOutput({ACTION: actions}, self._extras(choices, actions, rows), state)

    def _choose(self, choices: GreedyActions, rows: torch.Tensor) -> torch.Tensor:
        """Return the actions int64 [B] of the env rows ``rows``."""
        return choices.explore(self._epsilons[rows], self._generator)

    def _extras(
        self, choices: GreedyActions, actions: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the slot's extra columns, [B, ...] each, for ``actions`` [B]: the values that
        first priorities are computed from."""
        columns = {"value": choices.best.values, "taken": _of(choices.q, actions)}
        if choices.std is not None:
            best = choices.best.actions
            std = choices.std
            columns |= {"value_std": _of(std, best), "taken_std": _of(std, actions)}
        return columns


class RecordedEpsilonGreedyPolicy(EpsilonGreedyPolicy):
    """A policy whose output also has the log-probabilities [B, A] that it draws actions with, and
    whether it draws them at all, bool [B]: with an epsilon of 0, as noisy nets have it by default,
    an action follows from the network and its noise, and says nothing about how likely it was."""

    def _extras(
        self, choices: GreedyActions, actions: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        epsilons = self._epsilons[rows]
        recorded = {"parameters": choices.log_probs(epsilons), "independent": epsilons > 0}
        return {**super()._extras(choices, actions, rows), **recorded}


class GivenActionsPolicy(EpsilonGreedyPolicy):
    """A policy whose actions are given, because they were taken before: only the values, and the
    recurrent state, are its own. ``given`` returns the actions int64 [B]; set it before `act`."""

    given: Callable[[], npt.NDArray[np.int64]]

    def _choose(self, choices: GreedyActions, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.given())


def _of(each: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Return the elements [B] of ``actions`` [B] out of ``each`` [B, A]."""
    return each.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

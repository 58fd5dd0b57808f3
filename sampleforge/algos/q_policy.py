"""A Q-network that acts: every env row explores with an epsilon of its own."""

from __future__ import annotations

import torch

from sampleforge.algos.policy import Acted, FollowingModel, autocast
from sampleforge.data.weights import SharedWeights
from sampleforge.models.q_network import QNetwork
from sampleforge.spec import ACTION


class EpsilonGreedyPolicy(FollowingModel[QNetwork]):
    """``epsilons`` [rows of the run]; newer weights are taken once at least ``refresh_interval``
    env steps were taken since the last time."""

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
    ) -> None:
        super().__init__(model, weights, device=device, precision=precision, seed=seed)
        self._epsilons = epsilons.to(device, torch.float32)
        self._refresh_interval = refresh_interval
        self._acted = refresh_interval

    def refresh(self) -> None:
        if self._acted >= self._refresh_interval:
            self._acted = 0
            super().refresh()

    @torch.inference_mode()
    def act(
        self,
        obs: dict[str, torch.Tensor],
        state: torch.Tensor,
        first: torch.Tensor,
        rows: torch.Tensor,
    ) -> Acted:
        with autocast(self._device, self._precision):
            output = self._model.step(obs, state, first)
        q = output.parameters
        actions = self._model.distribution(q, obs).explore(self._epsilons[rows], self._generator)
        taken = q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        self._acted += len(rows)
        return Acted({ACTION: actions}, {"value": output.values, "taken": taken}, output.state)

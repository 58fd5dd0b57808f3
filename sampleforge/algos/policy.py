"""Policies with fixed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import EVALUATION_EPSILON, GreedyActions, QNetwork
from sampleforge.spec import ACTION

Array = npt.NDArray[Any]


class FrozenPolicy:
    """Acts with the weights that its ``model`` has: in evaluation, and for a loaded policy."""

    def __init__(self, model: ActorCritic | QNetwork) -> None:
        self.model = model.eval()

    def initial_state(self, rows: int) -> torch.Tensor:
        """Return the recurrent state [rows, S] to begin with."""
        return torch.zeros(rows, self.model.state_size)

    @torch.inference_mode()
    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Array], torch.Tensor]:
        """Return (actions, next state) for observation leaves [B, ...] as slots hold them, the
        recurrent state [B, S] and ``is_first`` (bool [B]: the state is zeroed there). Actions are
        leaf -> [B, ...] as slots hold them: the most likely ones, or, with ``stochastic``, samples
        (from ``generator``; None: torch's global generator)."""
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        output = self.model.step(leaves, state, torch.from_numpy(is_first))
        distribution = self.model.distribution(output.parameters, leaves)
        chosen = distribution.sample(generator) if stochastic else distribution.mode()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, output.state


class ExploringPolicy(FrozenPolicy):
    """Acts as a `FrozenPolicy`, and keeps what a dataset needs of the last step that sampled:
    ``log_prob`` float32 [B] of the actions, and the ``parameters`` [B, P] of their distribution, of
    a Q-network the log-probabilities of all actions."""

    log_prob: Array
    parameters: Array

    @torch.inference_mode()
    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Array], torch.Tensor]:
        leaves = {name: torch.from_numpy(leaf) for name, leaf in obs.items()}
        parameters, _, state = self.model.step(leaves, state, torch.from_numpy(is_first))
        distribution = self.model.distribution(parameters, leaves)
        if not stochastic:
            return {name: leaf.numpy() for name, leaf in distribution.mode().items()}, state
        chosen = distribution.sample(generator)
        if isinstance(distribution, GreedyActions):
            epsilons = torch.full(parameters.shape[:-1], EVALUATION_EPSILON)
            parameters = distribution.log_probs(epsilons)
            log_prob = parameters.gather(-1, chosen[ACTION].unsqueeze(-1)).squeeze(-1)
        else:
            log_prob = distribution.log_prob(chosen)
        self.log_prob, self.parameters = log_prob.numpy(), parameters.float().numpy()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, state

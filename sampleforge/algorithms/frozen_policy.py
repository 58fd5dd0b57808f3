"""The policy with fixed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork

Array = npt.NDArray[Any]


class FrozenPolicy:
    """Acts with the weights that its ``model`` has: in evaluation, and for a loaded policy.

    ``columns`` are what a dataset needs of the last step, if it is ``recorded`` and has sampled:
    "log_prob" float32 [B] of the actions, the "parameters" [B, P] of their distribution (of a
    Q-network the log-probabilities of all actions), and "independent", bool [B], all True."""

    def __init__(self, model: ActorCritic | QNetwork, *, recorded: bool = False) -> None:
        self.model = model.eval()
        self.columns: dict[str, Array] = {}
        self._recorded = recorded

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
        if self._recorded:
            self.columns = {}
            if stochastic:
                log_prob = distribution.log_prob(chosen)
                self.columns["log_prob"] = log_prob.numpy()
                self.columns["parameters"] = distribution.parameters.numpy()
                self.columns["independent"] = torch.ones_like(log_prob, dtype=torch.bool).numpy()
        return {name: leaf.numpy() for name, leaf in chosen.items()}, output.state

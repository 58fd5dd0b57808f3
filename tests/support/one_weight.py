"""A model of one weight, for tests of the weights that an evaluator plays with."""

from __future__ import annotations

from typing import Any

import torch

from sampleforge.models.actor_critic import ModelOutput


class OneWeight(torch.nn.Module):
    """A model that always takes action 0 and remembers the weight that each step was taken with."""

    state_size = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[float] = []

    def step(self, obs: Any, state: torch.Tensor, first: torch.Tensor) -> ModelOutput:
        self.seen.append(self.weight.item())
        return ModelOutput(torch.zeros(len(first), dtype=torch.long), torch.zeros(0), state)

    def distribution(self, parameters: torch.Tensor, obs: Any) -> OneWeight:
        self.parameters_ = parameters
        return self

    def mode(self) -> dict[str, torch.Tensor]:
        return {"action": self.parameters_}

"""An encoder whose updates take long: `--model.encoder tests.support.slow_learning:SlowEncoder`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping

import torch
from torch import nn

from sampleforge.models.config import ModelConfig
from sampleforge.spec import ArraySpec

SECONDS = 3.0
"""Seconds of each forward pass of the learner."""
START_S = 4.0
"""Seconds that a learner with `StartsSlowly` takes to start: more than any update of it takes on a
busy machine, with what the first one imports."""


class SlowEncoder(nn.Module):
    """A linear layer whose forward passes take `SECONDS` where gradients are wanted: actors are as
    fast as ever."""

    def __init__(self, observations: Mapping[str, ArraySpec], _: ModelConfig) -> None:
        super().__init__()
        self.out_features = 8
        self.layer = nn.Linear(observations["obs"].shape[0], self.out_features)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if torch.is_grad_enabled():
            time.sleep(SECONDS)
        found: torch.Tensor = self.layer(obs["obs"])
        return found


class StartsSlowly(SlowEncoder):
    """A linear layer that the learner's process takes `START_S` to make."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__(observations, config)
        if multiprocessing.current_process().name == "sampleforge: learner":
            time.sleep(START_S)

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.layer(obs["obs"])
        return found

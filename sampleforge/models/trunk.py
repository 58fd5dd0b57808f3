"""The trunk of a network: encoder and recurrent core, for one step or a whole rollout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sampleforge.models.config import ModelConfig
from sampleforge.models.cores import Core
from sampleforge.models.encoder_registry import make_encoder
from sampleforge.models.normaliser import normalised_leaves
from sampleforge.spec import ArraySpec


class Trunk(nn.Module):
    """Encoder and, unless ``config.core`` is none, recurrent core: ``out_features`` float32
    features, ``state_size`` floats of recurrent state per row."""

    def __init__(self, config: ModelConfig, observations: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        floats = normalised_leaves(observations, config)
        self.encoder = make_encoder(config, observations, floats)
        self.out_features: int = self.encoder.out_features  # type: ignore[assignment]
        self.core, self.state_size = None, 0
        if config.core != "none":
            self.core = Core(config.core, self.out_features, config.core_size)
            self.out_features, self.state_size = self.core.out_features, self.core.state_size

    def step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return features [B, F] and state [B, S] after one step, from leaves [B, ...], state
        [B, S], is_first bool [B]."""
        features = self.encoder(obs).float()
        if self.core is None:
            return features, state
        with torch.autocast(features.device.type, enabled=False):
            return self.core.step(features, state, is_first)

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return features [T, B, F] and the state [B, S] after a rollout, from leaves [T, B, ...],
        state [B, S], is_first bool [T, B]."""
        flat = {name: x.flatten(0, 1) for name, x in obs.items()}
        features = self.encoder(flat).float().unflatten(0, is_first.shape)
        if self.core is None:
            return features, state
        with torch.autocast(features.device.type, enabled=False):
            outputs, state = self.core(features, state, is_first)
            return outputs, state

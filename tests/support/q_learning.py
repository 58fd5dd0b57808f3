"""Small Q-networks, and random transitions for them."""

from __future__ import annotations

from typing import Any

import torch

from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.samples import Transitions
from sampleforge.spec import ActionSpec, ArraySpec

ACTIONS = 4
OBSERVATIONS = {"obs": ArraySpec((3,), "float32")}
MASKED = {**OBSERVATIONS, "action_mask": ArraySpec((ACTIONS,), "int8")}
DISCRETE = {"action": ActionSpec("discrete", (), "int64", (ACTIONS,))}


def network(seed: int, masked: bool = False, dueling: bool = True, head_size: int = 0) -> QNetwork:
    torch.manual_seed(seed)
    config = ModelConfig(encoder="mlp", hidden_sizes=(8,), normalise_observations=False)
    observations = MASKED if masked else OBSERVATIONS
    return QNetwork(config, observations, DISCRETE, dueling=dueling, head_size=head_size)


def transitions(batch: int = 6, masked: bool = False, seed: int = 0) -> Transitions:
    torch.manual_seed(seed)
    obs = {"obs": torch.randn(batch, 3)}
    following = {"obs": torch.randn(batch, 3)}
    discount = torch.full((batch,), 0.97)
    discount[::3] = 0.0
    if masked:
        for leaves in (obs, following):
            leaves["action_mask"] = torch.randint(0, 2, (batch, ACTIONS), dtype=torch.int8)
            leaves["action_mask"][:, 0] = 1
        following["action_mask"][::3] = 0  # a final observation allows nothing
    return Transitions(
        obs=obs,
        actions={"action": torch.randint(0, ACTIONS, (batch,))},
        returns=torch.randn(batch),
        discount=discount,
        next_obs=following,
        scaled_probability=torch.rand(batch, dtype=torch.float64) + 0.1,
    )


def weights_of(model: QNetwork) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


HEADS: dict[str, dict[str, Any]] = {
    "c51": {"value_distribution": "c51", "num_atoms": 7, "v_min": -1.5, "v_max": 3.0},
    "quantile": {"value_distribution": "quantile", "num_atoms": 5},
}

"""Action spaces of every kind, and random parameters of distributions over them."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sampleforge.ops.distributions import action_layout
from sampleforge.spec import ActionSpec, action_specs

DISCRETE = action_specs(spaces.Discrete(4))
UNEVEN = action_specs(
    spaces.Dict(
        a=spaces.MultiDiscrete(np.array([[2, 5], [3, 1]])),
        b=spaces.MultiBinary(3),
        c=spaces.Discrete(4),
    )
)
BOX = action_specs(spaces.Box(np.array([-2.0, 0.0], "f"), np.array([2.0, 0.5], "f")))
MIXED = action_specs(
    spaces.Tuple(
        (
            spaces.Box(-1.0, 3.0, (2, 2)),
            spaces.Discrete(3, start=5),
            spaces.Box(0.0, 1.0, (), dtype=np.float64),
            spaces.MultiBinary(2),
        )
    )
)
SPACES = {"discrete": DISCRETE, "uneven": UNEVEN, "box": BOX, "mixed": MIXED}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(actions: dict[str, ActionSpec], *batch: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(
        *batch, action_layout(actions).head_size(state_std=True), generator=seeded(1)
    )

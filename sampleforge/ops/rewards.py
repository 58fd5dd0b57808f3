"""The rewards that are learned from: scaled, and then clipped or reduced to their sign."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

RewardClip = float | Literal["sign"] | None
"""A limit of the absolute reward, "sign" (-1, 0 or 1 instead of the reward), or no change."""
R = TypeVar("R", torch.Tensor, npt.NDArray[np.float32])


def learned_rewards(reward: R, scale: float, clip: RewardClip) -> R:
    """Return ``reward * scale``, clipped to +- ``clip`` or reduced to its sign; float32, any shape.
    The argument is not changed, because the statistics of episodes count raw rewards."""
    learned: Any = reward * scale
    if clip == "sign":
        learned = torch.sign(learned) if isinstance(learned, torch.Tensor) else np.sign(learned)
    elif clip is not None:
        learned = learned.clip(-clip, clip)
    result: R = learned
    return result

"""The rewards that are learned from, in numpy and in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.ops.returns import learned_rewards

RAW = [-300.0, -1.0, -0.25, 0.0, 0.5, 2.0, 700.0]


@pytest.mark.parametrize(
    ("scale", "clip", "expected"),
    [
        (1.0, None, RAW),
        (0.5, None, [-150.0, -0.5, -0.125, 0.0, 0.25, 1.0, 350.0]),
        (0.5, 1.0, [-1.0, -0.5, -0.125, 0.0, 0.25, 1.0, 1.0]),
        (2.0, 1.0, [-1.0, -1.0, -0.5, 0.0, 1.0, 1.0, 1.0]),
        (0.5, "sign", [-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0]),
    ],
)
def test_rewards_are_scaled_first_and_then_clipped_or_reduced_to_their_sign(
    scale: float, clip: Any, expected: list[float]
) -> None:
    arrays = np.array(RAW, np.float32)
    tensors = torch.tensor(RAW)
    in_numpy = learned_rewards(arrays, scale, clip)
    in_torch = learned_rewards(tensors, scale, clip)
    assert in_numpy.dtype == np.float32 and in_torch.dtype == torch.float32
    assert in_numpy.tolist() == in_torch.tolist() == expected
    assert arrays.tolist() == tensors.tolist() == RAW, "raw rewards are counted as returns"

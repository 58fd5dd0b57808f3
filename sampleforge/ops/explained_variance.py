"""How much of the variance of the value targets the predicted values explain."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOMENTS = ("target_first", "target_second", "error_first", "error_second")
"""Names of the moments that `value_moments` gives."""
ROUNDING = 1e-9
"""A variance below this part of the second moment is rounding, and counts as 0."""


@torch.no_grad()
def value_moments(values: Tensor, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return the means, float64 [], of the targets and of the errors (target - value) over the
    valid elements, and those of their squares.

    ``values``, ``targets`` and ``mask`` have one shape; a ``mask`` of floats says how much each
    element counts. Means of parts add up to those of the whole, weighted by what the parts count.
    """
    columns, weight = moment_columns(values, targets), mask.flatten().double()
    stacked = torch.stack(list(columns.values())).flatten(1)
    total = weight.sum()
    means = torch.where(weight > 0, stacked, 0.0) @ weight / torch.where(total > 0, total, 1.0)
    return dict(zip(MOMENTS, means.unbind(), strict=True))


def moment_columns(values: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the elements, float64, whose means over the valid ones are `value_moments`."""
    targets = targets.double()
    error = targets - values
    columns = targets, targets.square(), error, error.square()
    return dict(zip(MOMENTS, columns, strict=True))


def explained_variance(moments: dict[str, float]) -> float | None:
    """Return 1 - Var(target - value) / Var(target) of `value_moments`: 1 is a perfect prediction,
    0 one that is no better than a constant, less than 0 a worse one. None where the targets do not
    vary, or are not finite."""
    target, target_square, error, error_square = (moments[name] for name in MOMENTS)
    variance = target_square - target**2
    if not math.isfinite(variance) or variance <= ROUNDING * target_square:
        return None
    explained = 1.0 - (error_square - error**2) / variance
    return explained if math.isfinite(explained) else None

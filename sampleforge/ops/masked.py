"""Means over the rows that count, and how much of the variance of the value targets the predicted
values explain.

``mask`` has the shape of the other inputs. If it is bool, rows with True count (None: all rows). If
it is float, it is the weight of each row, and means are weighted. Rows that are masked out may hold
anything, also NaN and inf: they reach neither the value nor the gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sampleforge.ops.running_stats import Moments


def valid_total(mask: Tensor) -> Tensor:
    """Return the number of valid rows [], or the sum of their weights; 1 if there is none."""
    total = mask.sum()
    return total.clamp(min=1) if mask.dtype == torch.bool else torch.where(total > 0, total, 1.0)


def masked_mean(x: Tensor, mask: Tensor | None = None, total: Tensor | None = None) -> Tensor:
    """Return the mean over the valid elements [], or 0 (with zero gradient) if there is none.
    ``total`` is the `valid_total` of the mask, for callers that need several means."""
    if mask is None:
        return x.mean()
    assert x.shape == mask.shape, (tuple(x.shape), tuple(mask.shape))
    total = valid_total(mask) if total is None else total
    if mask.dtype == torch.bool:
        return torch.where(mask, x, 0.0).sum() / total
    # Masked before the product: a zero weight times NaN or inf would be NaN, as would its gradient.
    return (torch.where(mask > 0, x, 0.0) * mask).sum() / total


def normalise_rows(
    x: Tensor, moments: Moments, least_std: float = 0.0, eps: float = 1e-8
) -> Tensor:
    """Return (x - mean) / max(std, ``least_std``) of each row of ``x`` [S, N], 0 where std is 0.

    ``moments`` [S] are those of the valid elements of a row (of all ranks, if there are
    several)."""
    std = moments.var.sqrt().clamp(min=least_std).to(x.dtype) + eps
    return (x - moments.mean.to(x.dtype).unsqueeze(1)).div_(std.unsqueeze(1))


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

"""Means over the rows that count.

``mask`` has the shape of the other inputs. If it is bool, rows with True count (None: all rows). If
it is float, it is the weight of each row, and means are weighted. Rows that are masked out may hold
anything, also NaN and inf: they reach neither the value nor the gradient.
"""

from __future__ import annotations

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

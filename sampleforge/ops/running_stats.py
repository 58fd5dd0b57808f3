"""Running mean and variance of a stream, merged exactly (Chan, Golub and LeVeque 1979).

All of it is float64, because the count grows without bound: in float32, adding one batch to 1e8
observations would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Gather = Callable[[Tensor], Tensor]
"""An all-gather over the ranks: this rank's float64 [k] -> [ranks, k] in rank order, the same on
every rank."""


def alone(values: Tensor) -> Tensor:
    """Return ``values`` as [1, k]: the `Gather` of a run with a single rank."""
    return values.unsqueeze(0)


@dataclass(frozen=True)
class Moments:
    """Mean, variance and number of the observations of a stream, elementwise."""

    mean: Tensor
    """float64 [...]"""
    var: Tensor
    """float64 [...], the population variance (divided by n)."""
    count: Tensor
    """float64 []: number of observations; or one for each mean."""


def moments(x: Tensor, mask: Tensor | None = None) -> Moments:
    """Return the moments over axis 0 of ``x`` [N, ...], of the rows where ``mask`` (bool [N]) is
    True, without waiting for the device.

    Without any row all moments are zero, and `merge` ignores them. Rows that are masked out may
    hold NaN.
    """
    if mask is not None:
        assert mask.dtype == torch.bool and mask.shape == x.shape[:1], (mask.shape, x.shape)
        return _moments(x, mask.view(-1, *[1] * (x.ndim - 1)), 0)
    x = x.double()
    count = x.new_full((), float(x.shape[0]))
    if x.shape[0] == 0:
        zeros = x.new_zeros(x.shape[1:])
        return Moments(zeros, zeros.clone(), count)
    var, mean = torch.var_mean(x, dim=0, correction=0)
    return Moments(mean, var, count)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of both streams together, as if they were one. Shapes must agree.

    delta = mean_b - mean_a, mean = mean_a + delta n_b / n,
    var = (n_a var_a + n_b var_b + delta^2 n_a n_b / n) / n.
    """
    assert a.mean.shape == b.mean.shape == a.var.shape == b.var.shape, (a.mean.shape, b.mean.shape)
    total = a.count + b.count
    weight = b.count / total.clamp(min=1.0)
    delta = b.mean - a.mean
    var = a.var + (b.var - a.var) * weight + delta * delta * weight * (1.0 - weight)
    return Moments(a.mean + delta * weight, var, total)


def scalar_moments(x: Tensor, mask: Tensor) -> Moments:
    """Return the moments [] of all elements of ``x`` where ``mask`` (same shape) is True, without
    waiting for the device.

    Elements that are masked out may hold NaN. A ``mask`` of floats gives the weight of each
    element, and ``count`` is their sum."""
    assert mask.shape == x.shape, (mask.shape, x.shape)
    return _moments(x, mask, tuple(range(x.ndim)))


def row_moments(x: Tensor, weight: Tensor) -> Moments:
    """Return the moments [S] of each row of ``x`` [S, N], without waiting for the device.
    ``weight`` [S, N]: bool, or float weights, as in `scalar_moments`."""
    weight = weight.double()
    count = weight.sum(1)
    share = weight / torch.where(count > 0, count, 1.0).unsqueeze(1)
    x = torch.where(weight > 0, x.double(), 0.0)
    mean = torch.linalg.vecdot(x, share)
    var = torch.linalg.vecdot((x - mean.unsqueeze(1)).square_(), share)
    return Moments(mean, var, count)


def _moments(x: Tensor, mask: Tensor, dim: int | tuple[int, ...]) -> Moments:
    """Return the moments over the axes ``dim``. On these axes ``mask`` is as long as ``x``, on the
    others as long or 1. Selecting the rows instead would wait for the device to say how many there
    are."""
    x, count = x.double(), mask.sum().double()
    some = torch.where(count > 0, count, 1.0)
    mean = _counted(x, mask).sum(dim) / some
    var = _counted((x - mean).square(), mask).sum(dim) / some
    return Moments(mean, var, count)


def _counted(x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x`` times the mask: 0 where it is masked out, even if ``x`` is NaN there."""
    if mask.dtype == torch.bool:
        return torch.where(mask, x, 0.0)
    return torch.where(mask > 0, x * mask, 0.0)


def over_ranks(own: Moments, gather: Gather) -> Moments:
    """Return the moments of the streams of all ranks together; of a single rank exactly ``own``.

    w_i = n_i / n, mean = sum w_i mean_i, var = sum w_i (var_i + (mean_i - mean)^2).
    """
    if gather is alone:
        return own
    size = own.mean.numel()
    flat = torch.cat((own.mean.flatten(), own.var.flatten(), own.count.flatten()))
    mean, var, count = torch.split(gather(flat), [size, size, own.count.numel()], dim=1)
    total = count.sum(0)
    weight = count / torch.where(total > 0, total, 1.0)
    merged = (weight * mean).sum(0)
    spread = (weight * (var + (mean - merged).square())).sum(0)
    return Moments(merged.view_as(own.mean), spread.view_as(own.var), total.view_as(own.count))

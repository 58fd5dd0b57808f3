"""Mean and variance of a stream, merged exactly (Chan, Golub and LeVeque 1979), in float64.

float64 because the count grows without bound: in float32, adding one batch to 1e8 observations
would change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    mean: Tensor
    """float64 [...]"""
    var: Tensor
    """float64 [...], of the population (divided by n)."""
    count: Tensor
    """float64 []: how many observations were seen."""


def moments(x: Tensor, mask: Tensor | None = None) -> Moments:
    """Moments over axis 0 of ``x`` [N, ...], of the rows where ``mask`` (bool [N]) is True.

    No row at all gives zeros, which `merge` leaves without effect. Rows that are masked out may
    hold NaN.
    """
    if mask is not None:
        assert mask.dtype == torch.bool and mask.shape == x.shape[:1], (mask.shape, x.shape)
        x = x[mask]
    x = x.double()
    count = torch.tensor(float(x.shape[0]), dtype=torch.float64, device=x.device)
    if x.shape[0] == 0:
        zeros = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
        return Moments(zeros, zeros.clone(), count)
    var, mean = torch.var_mean(x, dim=0, correction=0)
    return Moments(mean, var, count)


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both streams together, as if they had been one. Shapes must agree.

    delta = mean_b - mean_a, mean = mean_a + delta n_b / n,
    var = (n_a var_a + n_b var_b + delta^2 n_a n_b / n) / n.
    """
    assert a.mean.shape == b.mean.shape == a.var.shape == b.var.shape, (a.mean.shape, b.mean.shape)
    total = a.count + b.count
    weight = b.count / total.clamp(min=1.0)
    delta = b.mean - a.mean
    var = a.var + (b.var - a.var) * weight + delta * delta * weight * (1.0 - weight)
    return Moments(a.mean + delta * weight, var, total)

"""The terms of PPO's loss.

``mask`` has the shape of the other inputs. If it is bool, rows with True count (None: all rows). If
it is float, it is the weight of each row, and means are weighted. Rows that are masked out may hold
anything, also NaN and inf: they reach neither the value nor the gradient. ``total`` is the
`valid_total` of the mask, for callers that compute it once for several terms.
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
    """Return the mean over the valid elements [], or 0 (with zero gradient) if there is none."""
    if mask is None:
        return x.mean()
    _check(x, mask)
    total = valid_total(mask) if total is None else total
    if mask.dtype == torch.bool:
        return torch.where(mask, x, 0.0).sum() / total
    return (_valid(x, mask) * mask).sum() / total


def normalise(
    x: Tensor,
    moments: Moments,
    mask: Tensor | None = None,
    eps: float = 1e-8,
    least_std: float = 0.0,
) -> Tensor:
    """Return (x - mean) / max(std, ``least_std``), and 0 where ``x`` is masked out or std is 0.

    ``moments`` [] are those of all valid elements (of all ranks, if there are several)."""
    centred = _valid(x - moments.mean.to(x.dtype), mask)
    return centred / (moments.var.sqrt().clamp(min=least_std).to(x.dtype) + eps)


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    clip_ratio: float,
    mask: Tensor | None = None,
    total: Tensor | None = None,
) -> Tensor:
    """Return PPO's policy loss, to be minimised: -mean min(r A, clip(r, 1/(1+e), 1+e) A).

    arXiv 1707.06347, eq. 7, with a range that is symmetric in log r. ``log_ratio`` is
    log pi - log mu, mu being the behaviour policy.
    """
    _check(log_ratio, advantages)
    return masked_mean(
        surrogate_of_steps(_valid(log_ratio, mask), advantages, clip_ratio), mask, total
    )


def surrogate_of_steps(log_ratio: Tensor, advantages: Tensor, clip_ratio: float) -> Tensor:
    """Return the elements whose mean `clipped_surrogate` is."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 / (1.0 + clip_ratio), 1.0 + clip_ratio)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    targets: Tensor,
    clip: float | None,
    mask: Tensor | None = None,
    total: Tensor | None = None,
) -> Tensor:
    """Return mean max((v - R)^2, (clip(v, v_old +- clip) - R)^2), or mean (v - R)^2 if ``clip`` is
    None.

    The customary factor 1/2 is part of the value coefficient.
    """
    _check(values, old_values, targets)
    error = value_error_of_steps(_valid(values, mask), old_values, targets, clip)
    return masked_mean(error, mask, total)


def value_error_of_steps(
    values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None
) -> Tensor:
    """Return the elements whose mean `clipped_value_loss` is."""
    error = (values - targets).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - targets).square())
    return error


def approx_kl(log_ratio: Tensor, mask: Tensor | None = None, total: Tensor | None = None) -> Tensor:
    """Return an estimate of KL(mu, pi) on actions of mu: mean (r - 1 - log r).

    It is the estimator k3 of http://joschu.net/blog/kl-approx.html, which is never negative.
    """
    return masked_mean(kl_of_steps(_valid(log_ratio, mask)), mask, total)


def kl_of_steps(log_ratio: Tensor) -> Tensor:
    """Return the elements whose mean `approx_kl` is."""
    return log_ratio.expm1() - log_ratio


def clip_fraction(
    log_ratio: Tensor,
    clip_ratio: float,
    mask: Tensor | None = None,
    total: Tensor | None = None,
) -> Tensor:
    """Return the fraction of valid rows whose ratio lies outside [1/(1+e), 1+e]."""
    return masked_mean(is_clipped(log_ratio, clip_ratio).to(log_ratio.dtype), mask, total)


def is_clipped(log_ratio: Tensor, clip_ratio: float) -> Tensor:
    """Return which ratios lie outside the range, bool in the shape of ``log_ratio``."""
    return log_ratio.abs() > math.log1p(clip_ratio)


def _valid(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``x`` with 0 where it is masked out. If a loss of NaN or inf were masked *after* it is
    computed, it would still send NaN back, because its zero gradient is multiplied by inf."""
    if mask is None:
        return x
    return torch.where(mask if mask.dtype == torch.bool else mask > 0, x, 0.0)


def _check(*tensors: Tensor) -> None:
    for x in tensors:
        assert x.shape == tensors[0].shape, [tuple(t.shape) for t in tensors]

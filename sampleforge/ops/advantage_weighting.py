"""Exponentially weighted imitation learning (MARWIL; Wang et al. 2018, NeurIPS).

The loss is -mean exp(beta A / c) log pi(a|s), with the advantage A = R - V(s) of the recorded
action, R being its return to go, and c the root of a moving average of A^2. beta = 0 is behaviour
cloning: every action has the weight 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampleforge.ops.masked import masked_mean


def returns_to_go(reward: npt.NDArray[np.float32], gamma: float) -> npt.NDArray[np.float32]:
    """Return R_t = sum_{k >= t} gamma^(k-t) r_k [T] of one episode's rewards [T]. Sums are in
    float64."""
    returns = np.empty(len(reward), np.float64)
    ahead = 0.0
    for t in range(len(reward) - 1, -1, -1):
        ahead = float(reward[t]) + gamma * ahead
        returns[t] = ahead
    return returns.astype(np.float32)


def advantage_weights(advantages: Tensor, exponent: float, norm: Tensor, cap: float) -> Tensor:
    """Return min(exp(exponent * A / c), cap), of the shape of ``advantages``. ``norm`` [] is c; at
    0, when every advantage was 0 so far, all weights are 1."""
    scaled = exponent * advantages / torch.where(norm > 0, norm, torch.inf)
    return scaled.clamp(max=math.log(cap)).exp()


def weighted_imitation_loss(
    log_prob: Tensor, weights: Tensor | None, mask: Tensor, total: Tensor
) -> Tensor:
    """Return -mean w log pi(a|s) over the steps of ``mask``. All are [T, B]; ``weights`` has no
    gradient (None: all are 1, which is behaviour cloning)."""
    weighted = log_prob if weights is None else weights * log_prob
    return -masked_mean(weighted, mask, total)


def moving_square(old: Tensor, advantages: Tensor, mask: Tensor, decay: float) -> Tensor:
    """Return the moving average of A^2 [] after a batch, float64: decay * old + (1 - decay) * mean
    A^2, or the batch's own mean where ``old`` is 0. A batch that is not finite changes nothing."""
    new = masked_mean(advantages.square(), mask).double()
    moved = torch.where(old > 0, decay * old + (1.0 - decay) * new, new)
    return torch.where(torch.isfinite(new) & (new > 0), moved, old)

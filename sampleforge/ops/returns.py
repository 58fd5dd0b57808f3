"""Rewards that are learned from, returns and advantages over one rollout, and imitation that is
weighted by advantages. Time is axis 0: all tensors are [T, B].

``values[t]`` is V(x_t). ``next_values[t]`` is V of the state that step t led to: ``values[t + 1]``
inside an episode, V(final observation) where the episode ended at t, and V(obs_T) at t = T - 1.
``terminated`` is Gymnasium's: nothing is bootstrapped. A truncated step has ``terminated`` False,
so it is bootstrapped from ``next_values``. ``trace_cut[t]`` says that step t + 1 does not continue
step t (the episode ended at t, or row t + 1 is not valid). All inputs must be finite, also in rows
that are masked out.

The loss of weighted imitation (MARWIL; Wang et al. 2018, NeurIPS) is -mean exp(beta A / c) log
pi(a|s), with the advantage A = R - V(s) of the recorded action, R being its return to go, and c the
root of a moving average of A^2. beta = 0 is behaviour cloning: every action has the weight 1.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sampleforge.ops.masked import masked_mean

Floats = npt.NDArray[np.floating[Any]]


class VTrace(NamedTuple):
    """The results of `vtrace`."""

    targets: Tensor
    """[T, B]: v_s, the targets of the value function."""
    advantages: Tensor
    """[T, B]: the advantages of the policy gradient, weighted by the clipped importance ratio."""


def linear_recurrence(delta: Tensor, decay: Tensor) -> Tensor:
    """Return x with x[t] = delta[t] + decay[t] * x[t + 1] and x[T] = 0; all are [T, ...].

    Parallel doubling: after k rounds x[t] holds the terms t .. t + 2**k - 1 and ``reach[t]`` the
    product of their decays. It takes log2(T) rounds of whole-tensor operations, without a loop over
    T and without host synchronisation. On the CPU numpy makes the rounds, and the inputs must not
    require a gradient.
    """
    assert delta.shape == decay.shape and delta.ndim >= 1, (delta.shape, decay.shape)
    if delta.device.type == "cpu":
        return torch.from_numpy(_doubling_in_place(delta.clone().numpy(), decay.clone().numpy()))
    return doubling(delta, decay)


def doubling(x: Tensor, reach: Tensor) -> Tensor:
    """Return `linear_recurrence` of tensors on any device."""
    step = 1
    while step < x.shape[0]:
        head = reach[:-step]
        x = torch.cat((torch.addcmul(x[:-step], head, x[step:]), x[-step:]))
        reach = torch.cat((head * reach[step:], reach[-step:]))
        step *= 2
    return x


def _doubling_in_place(x: Floats, reach: Floats) -> Floats:
    """Return `linear_recurrence` of arrays, which are overwritten. For few rows numpy's calls take
    a fraction of the time of torch's (benchmarks/results/learner_step.md)."""
    step = 1
    with np.errstate(all="ignore"):  # what is not finite is noticed in the loss
        while step < len(x):
            head, factor = x[:-step], reach[:-step]
            head += factor * x[step:]
            factor *= reach[step:]
            step *= 2
    return x


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    trace_cut: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return generalised advantage estimates [T, B] (arXiv 1506.02438, eq. 16), without gradient.

    A_t = sum_{l >= 0} (gamma lam)^l delta_{t+l} up to the first trace cut,
    delta_t = r_t + gamma (1 - terminated_t) next_values_t - values_t.
    ``terminated`` and ``trace_cut`` are bool. The value targets are ``advantages + values``.
    """
    _check(rewards, values, next_values)
    _check_flags(rewards, terminated, trace_cut)
    delta = rewards + gamma * next_values * ~terminated - values
    decay = torch.full_like(delta, gamma * lam).masked_fill_(trace_cut | terminated, 0.0)
    return linear_recurrence(delta, decay)


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    trace_cut: Tensor,
    gamma: float,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> VTrace:
    """Return V-trace targets and advantages (arXiv 1802.01561, eq. 1 and section 4.2), without
    gradient.

    v_s = V(x_s) + sum_{t >= s} gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t delta_t,
    summed up to the first trace cut,
    delta_t = r_t + gamma (1 - terminated_t) V(x_{t+1}) - V(x_t),
    rho_t = min(rho_clip, ratio_t), c_t = lam min(c_clip, ratio_t),
    advantage_t = rho_t (r_t + gamma (1 - terminated_t) v_{t+1} - V(x_t)).

    ``log_ratios``: log pi(a|x) - log mu(a|x). Where step t + 1 does not continue step t, or lies
    beyond the rollout, v_{t+1} is ``next_values[t]``; at t = T - 1 that is V(obs_T) itself.
    """
    _check(log_ratios, rewards, values, next_values)
    _check_flags(rewards, terminated, trace_cut)
    ratios = log_ratios.exp()
    rho = ratios.clamp(max=rho_clip)
    discounts = torch.full_like(rewards, gamma).masked_fill_(terminated, 0.0)
    delta = rho * (rewards + discounts * next_values - values)
    decay = (gamma * lam * ratios.clamp(max=c_clip)).masked_fill_(trace_cut | terminated, 0.0)
    targets = values + linear_recurrence(delta, decay)
    next_targets = torch.cat((targets[1:], next_values[-1:]))
    next_targets = torch.where(trace_cut, next_values, next_targets)
    return VTrace(targets, rho * (rewards + discounts * next_targets - values))


def _check(*tensors: Tensor) -> None:
    """Assert that all are [T, B] of one shape, floating: silent broadcasting would break learning
    unnoticed."""
    shape = tensors[0].shape
    assert len(shape) == 2 and shape[0] > 0, f"expected [T, B], got {tuple(shape)}"
    for x in tensors:
        assert x.shape == shape and x.is_floating_point(), (tuple(x.shape), x.dtype, tuple(shape))


def _check_flags(like: Tensor, *flags: Tensor) -> None:
    for x in flags:
        assert x.shape == like.shape and x.dtype == torch.bool, (tuple(x.shape), x.dtype)


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

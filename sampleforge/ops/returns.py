"""Returns and advantages over one rollout. Time is axis 0: everything is [T, B].

``values[t]`` is V(x_t); ``next_values[t]`` is V of the state that step t led to: ``values[t + 1]``
inside an episode, V(final observation) where the episode ended at t, and V(obs_T) at t = T - 1.
``terminated`` is Gymnasium's: nothing is bootstrapped. A truncated step has ``terminated`` False,
so it is bootstrapped from ``next_values``. ``cut[t]``: step t + 1 does not continue step t (the
episode ended at t, or row t + 1 is not valid). All inputs must be finite, in masked-out rows too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    targets: Tensor
    """[T, B]: v_s, what the value function should have said."""
    advantages: Tensor
    """[T, B]: of the policy gradient, weighted by the clipped importance ratio."""


def linear_recurrence(delta: Tensor, decay: Tensor) -> Tensor:
    """x[t] = delta[t] + decay[t] * x[t + 1] with x[T] = 0; all of shape [T, ...].

    Parallel doubling: after k rounds x[t] holds the terms t .. t + 2**k - 1 and ``reach[t]`` the
    product of their decays. log2(T) rounds of whole-tensor operations, no loop over T and no host
    synchronisation.
    """
    assert delta.shape == decay.shape and delta.ndim >= 1, (delta.shape, decay.shape)
    x, reach, step = delta, decay, 1
    while step < delta.shape[0]:
        head = reach[:-step]
        x = torch.cat((torch.addcmul(x[:-step], head, x[step:]), x[-step:]))
        reach = torch.cat((head * reach[step:], reach[-step:]))
        step *= 2
    return x


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    cut: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates [T, B] (arXiv 1506.02438, eq. 16), without gradient.

    A_t = sum_{l >= 0} (gamma lam)^l delta_{t+l} up to the first cut,
    delta_t = r_t + gamma (1 - terminated_t) next_values_t - values_t.
    ``terminated`` and ``cut`` are bool. The value targets are ``advantages + values``.
    """
    _check(rewards, values, next_values)
    _check_flags(rewards, terminated, cut)
    delta = rewards + gamma * next_values * ~terminated - values
    decay = torch.full_like(delta, gamma * lam).masked_fill_(cut | terminated, 0.0)
    return linear_recurrence(delta, decay)


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    cut: Tensor,
    gamma: float,
    lam: float,
    rho_clip: float,
    c_clip: float,
) -> VTrace:
    """V-trace targets and advantages (arXiv 1802.01561, eq. 1 and section 4.2), without gradient.

    v_s = V(x_s) + sum_{t >= s} gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t delta_t, to the first cut,
    delta_t = r_t + gamma (1 - terminated_t) V(x_{t+1}) - V(x_t),
    rho_t = min(rho_clip, ratio_t), c_t = lam min(c_clip, ratio_t),
    advantage_t = rho_t (r_t + gamma (1 - terminated_t) v_{t+1} - V(x_t)).

    ``log_ratios``: log pi(a|x) - log mu(a|x). Where step t + 1 does not continue step t, or lies
    beyond the rollout, v_{t+1} is ``next_values[t]``: V(obs_T) itself at the tail, never something
    reconstructed from it.
    """
    _check(log_ratios, rewards, values, next_values)
    _check_flags(rewards, terminated, cut)
    ratios = log_ratios.exp()
    rho = ratios.clamp(max=rho_clip)
    discounts = torch.full_like(rewards, gamma).masked_fill_(terminated, 0.0)
    delta = rho * (rewards + discounts * next_values - values)
    decay = (gamma * lam * ratios.clamp(max=c_clip)).masked_fill_(cut | terminated, 0.0)
    targets = values + linear_recurrence(delta, decay)
    following = torch.cat((targets[1:], next_values[-1:]))
    following = torch.where(cut, next_values, following)
    return VTrace(targets, rho * (rewards + discounts * following - values))


def _check(*tensors: Tensor) -> None:
    """All [T, B], same shape, floating: silent broadcasting would break the learning unseen."""
    shape = tensors[0].shape
    assert len(shape) == 2 and shape[0] > 0, f"expected [T, B], got {tuple(shape)}"
    for x in tensors:
        assert x.shape == shape and x.is_floating_point(), (tuple(x.shape), x.dtype, tuple(shape))


def _check_flags(like: Tensor, *flags: Tensor) -> None:
    for x in flags:
        assert x.shape == like.shape and x.dtype == torch.bool, (tuple(x.shape), x.dtype)

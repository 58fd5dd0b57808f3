"""The losses of soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905).

Actions are in units of their bounds, -1 to 1, and so are their densities.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sampleforge.ops.gaussian import MAX_LOG_STD, MIN_LOG_STD

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


class Drawn(NamedTuple):
    """Actions drawn from a policy, differentiable by its parameters."""

    actions: Tensor
    """float32 [B, A], between -1 and 1."""
    log_prob: Tensor
    """float32 [B], the log density of each."""


def draw(parameters: Tensor, noise: Tensor) -> Drawn:
    """Return tanh(mean + std * noise) and its log density.

    ``parameters`` [B, 2A] are the means and the log standard deviations, ``noise`` [B, A] standard
    normal numbers (section 5 and appendix C of the paper)."""
    mean, log_std = parameters.chunk(2, -1)
    log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_density = -0.5 * noise.square() - log_std - _LOG_ROOT_TAU
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))  # log(1 - tanh(u) ** 2)
    return Drawn(u.tanh(), (log_density - log_slope).sum(-1))


def soft_targets(
    returns: Tensor, discount: Tensor, values: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return the targets [B], for actions a' drawn from the policy (eq. 3 and 6):
    returns + discount * (min_i Q_i(s', a') - temperature * log pi(a'|s')).

    ``values`` [N, B]: of the target critics at s', a'. With windows of several steps, the entropies
    between s and s' are left out, as is usual."""
    return returns + discount * (values.amin(0) - temperature * log_prob)


def actor_loss(values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean of temperature * log pi(a|s) - min_i Q_i(s, a) (eq. 9), []; ``values``
    [N, B], of actions a that are drawn from the policy."""
    return (temperature * log_prob - values.amin(0)).mean()


def temperature_loss(temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return the mean of -temperature * (log pi(a|s) + target entropy) (eq. 18), [], whose gradient
    is by the temperature alone."""
    return -temperature * (log_prob.detach() + target_entropy).mean()

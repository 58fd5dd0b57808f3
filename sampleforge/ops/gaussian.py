"""Diagonal Gaussian actions, as they are or squashed into finite bounds by tanh."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_LOG_STD, MAX_LOG_STD = -10.0, 4.0
"""log_std is clamped to these, so that neither 1 / std nor a sample overflows."""
SATURATION = 1.0 - 1e-6
"""|tanh u| is kept below this, or a stored action could not be unsquashed."""

# Gauss-Hermite, 8 nodes +-x: E[f(z)] ~ sum_k weight_k (f(node_k) + f(-node_k)), z ~ N(0, 1).
_NODES = (0.5390798, 1.6365190, 2.8024859, 4.1445472)
_WEIGHTS = (0.37301226, 0.11723991, 9.6352201e-3, 1.1261454e-4)


class Gaussian:
    """``mean``, ``log_std`` float32 [..., n] over the unbounded u; the action is u itself.

    With ``low`` and ``high`` (float64 [n]) it is a = low + (high - low) (1 + tanh u) / 2. What is
    stored is a, so every log-probability is taken of the u that a stands for, at sampling as in the
    learner, and the ratio of the two is 1 on-policy to rounding. The map is computed in float64:
    near a bound, 1 - |tanh u| would lose all its digits in float32.
    """

    def __init__(
        self, mean: Tensor, log_std: Tensor, low: Tensor | None = None, high: Tensor | None = None
    ) -> None:
        assert mean.shape == log_std.shape, (tuple(mean.shape), tuple(log_std.shape))
        self.mean = mean
        self.log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
        self.bounds = None if low is None or high is None else (low, (high - low) / 2)

    def sample(self, generator: torch.Generator | None, noise: Tensor | None = None) -> Tensor:
        """[..., n]: float32, or float64 if squashed. ``noise`` [..., n]: standard normal numbers to
        use, drawn from the generator if there are none."""
        if noise is None:
            noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self._squash(torch.addcmul(self.mean, self.log_std.exp(), noise).detach())

    def mode(self) -> Tensor:
        """The mean, squashed if the actions are (the median then)."""
        return self._squash(self.mean.detach())

    def log_prob(self, actions: Tensor) -> Tensor:
        """[...]: log density of actions [..., n] with respect to da, summed over n."""
        u = self._unsquash(actions)
        z = (u - self.mean) * (-self.log_std).exp()
        log_density = -0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        if self.bounds is not None:
            log_density = log_density - self._log_slope(u)
        return log_density.sum(-1)

    def entropy(self) -> Tensor:
        """[...]: exact; squashed: H(u) + E[log da/du], the mean by quadrature with 8 nodes."""
        entropy = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        if self.bounds is not None:
            std = self.log_std.exp()
            for node, weight in zip(_NODES, _WEIGHTS, strict=True):
                above, below = self.mean + node * std, self.mean - node * std
                entropy = entropy + weight * (self._log_slope(above) + self._log_slope(below))
        return entropy.sum(-1)

    def _squash(self, u: Tensor) -> Tensor:
        if self.bounds is None:
            return u
        low, half = self.bounds
        return low + half * (1.0 + u.double().tanh().clamp(-SATURATION, SATURATION))

    def _unsquash(self, actions: Tensor) -> Tensor:
        if self.bounds is None:
            return actions.float()
        low, half = self.bounds
        y = (actions.double() - low) / half - 1.0
        return y.clamp(-SATURATION, SATURATION).atanh().float()

    def _log_slope(self, u: Tensor) -> Tensor:
        """log da/du = log half + log(1 - tanh^2 u), in a form without cancellation."""
        assert self.bounds is not None
        log_half = self.bounds[1].log().float()
        return log_half + 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))

"""Diagonal Gaussian distributions of actions, unbounded or squashed into finite bounds by tanh."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_LOG_STD, MAX_LOG_STD = -10.0, 4.0
"""log_std is clamped to this range, so that neither 1 / std nor a sample overflows."""
SATURATION = 1.0 - 1e-6
"""|tanh u| is kept below this: otherwise a stored action could not be unsquashed."""

# log(2 cosh u) = E|u + v| for v of density sech(v)^2 / 2, which is a mixture of normal densities
# (Andrews and Mallows 1974); these five, with these weights, give log(2 cosh u) to 4.1e-7.
_STDS = (0.462268691, 0.654069801, 0.920876888, 1.292070312, 1.807906874)
_WEIGHTS = (0.064039795, 0.349479654, 0.41482085, 0.158576793, 0.013082908)


class Gaussian:
    """``mean``, ``log_std`` float32 [..., n] over the unbounded u; the action is u itself.

    With ``low`` and ``high`` (float64 [n]) the action is a = low + (high - low) (1 + tanh u) / 2.
    The slots store a. Both the actor and the learner compute the log-probability from the u that a
    stands for, so on-policy their ratio is 1 up to rounding. The map is computed in float64: near a
    bound, 1 - |tanh u| would lose all its digits in float32.
    """

    def __init__(
        self, mean: Tensor, log_std: Tensor, low: Tensor | None = None, high: Tensor | None = None
    ) -> None:
        assert mean.shape == log_std.shape, (tuple(mean.shape), tuple(log_std.shape))
        self.mean = mean
        self.log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
        self.bounds = None if low is None or high is None else (low, (high - low) / 2)

    def sample(self, generator: torch.Generator | None, noise: Tensor | None = None) -> Tensor:
        """Return a sample [..., n], float32, or float64 if squashed. ``noise`` [..., n]: standard
        normal numbers to use; drawn from the generator if None."""
        if noise is None:
            noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self._squash(torch.addcmul(self.mean, self.log_std.exp(), noise).detach())

    def mode(self) -> Tensor:
        """Return the mean of u, squashed if the actions are (it is then their median)."""
        return self._squash(self.mean.detach())

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density [...] of actions [..., n] with respect to da, summed over n."""
        u = self._unsquash(actions)
        z = (u - self.mean) * (-self.log_std).exp()
        log_density = -0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        if self.bounds is not None:
            log_density = log_density - self._log_slope(u)
        return log_density.sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy [...]: exact, or, if squashed, H(u) + E[log da/du] with an error of at
        most 1e-6 per element at any std."""
        entropy = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        if self.bounds is not None:
            log_half = self.bounds[1].log().to(entropy.dtype)
            log_two_cosh: Tensor = _MeanLogTwoCosh.apply(self.mean, self.log_std)  # type: ignore[no-untyped-call]
            entropy = entropy + log_half + 2.0 * (math.log(2.0) - log_two_cosh)
        return entropy.sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """Return KL(self, other) [...], summed over n. Squashing both alike does not change it."""
        spread = (2.0 * self.log_std).exp() + (self.mean - other.mean).square()
        kl = other.log_std - self.log_std + 0.5 * (spread * (-2.0 * other.log_std).exp() - 1.0)
        return kl.sum(-1)

    def _squash(self, u: Tensor) -> Tensor:
        if self.bounds is None:
            return u
        low, half = self.bounds
        return low + half * (1.0 + u.double().tanh().clamp(-SATURATION, SATURATION))

    def _unsquash(self, actions: Tensor) -> Tensor:
        return actions.float() if self.bounds is None else unsquash(actions, *self.bounds)

    def _log_slope(self, u: Tensor) -> Tensor:
        assert self.bounds is not None
        return log_slope(u, self.bounds[1])


def unsquash(actions: Tensor, low: Tensor, half: Tensor) -> Tensor:
    """Return the u, float32 [..., n], that squashed actions [..., n] stand for. ``low`` and
    ``half``, float64 [n]: the lower bounds, and half of the ranges."""
    y = (actions.double() - low) / half - 1.0
    return y.clamp(-SATURATION, SATURATION).atanh().float()


def log_slope(u: Tensor, half: Tensor) -> Tensor:
    """Return log da/du = log half + log(1 - tanh^2 u) [..., n], in a form without cancellation."""
    log_half = half.log().float()
    return log_half + 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


def mean_log_two_cosh(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E log(2 cosh u) for u ~ N(mean, std), elementwise, and its derivatives by ``mean`` and
    ``log_std``.

    It is E|u + v| over the mixture components of v, for each of which u + v is normal, and
    E|N(m, s)| = s sqrt(2 / pi) exp(-m^2 / 2 s^2) + m erf(m / s sqrt 2). The derivatives are two
    factors that the expectation needs anyway: d/dm is the erf, d/ds the factor of s.

    Gauss-Hermite quadrature would be off by .25 at a std of 4.5: log cosh bends within a part of
    the distribution that lies between its nodes. Here a larger std only makes the error smaller.
    """
    variances, weights = _mixture(mean.dtype, mean.device)
    variance = (2.0 * log_std).exp()
    std = (variance.unsqueeze(-1) + variances).sqrt()
    z = mean.unsqueeze(-1) / std
    by_std = z.square().mul_(-0.5).exp_().mul_(weights * math.sqrt(2 / math.pi))
    # No matrix product: autocast would take it in bfloat16.
    by_mean = z.mul_(math.sqrt(0.5)).erf_().mul_(weights).sum(-1)
    expectation = (std * by_std).sum(-1) + mean * by_mean
    return expectation, by_mean, variance * (by_std / std).sum(-1)


class _MeanLogTwoCosh(torch.autograd.Function):
    """`mean_log_two_cosh` for autograd."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor) -> Tensor:
        expectation, *derivatives = mean_log_two_cosh(mean, log_std)
        ctx.save_for_backward(*derivatives)
        return expectation

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        by_mean, by_log_std = ctx.saved_tensors
        return gradients[0] * by_mean, gradients[0] * by_log_std


@lru_cache(maxsize=8)
def _mixture(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return variances and weights [5] of the mixture of normal densities."""
    with torch.inference_mode(False):  # built while acting, used in training too
        stds = torch.tensor(_STDS, dtype=torch.float64)
        weights = torch.tensor(_WEIGHTS, dtype=torch.float64)
        weights = weights / weights.sum()
        return stds.square().to(device, dtype), weights.to(device, dtype)

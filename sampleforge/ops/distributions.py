"""The policy's distribution over all leaves of an action, and its parts: categorical distributions
of discrete elements, and Gaussians of box elements, unbounded or squashed into finite bounds by
tanh. The leaves are independent, so their log-probabilities add up.

The parameters of a distribution, along the last axis:
  logits of every discrete element in leaf order (MultiBinary: two per element) |
  means of every box element in leaf order | their log standard deviations in the same order.

The logits [..., n_1 + ... + n_K] of K discrete elements with n_1 .. n_K categories become
log-probabilities [..., K, N] with N the largest size; smaller parts are padded with categories of
probability 0. A single part keeps the shape [..., N]: it is the hot path, and views cost as much as
sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sampleforge.spec import ActionSpec

FORBIDDEN = -1e9
"""Logit of a category that is masked out. Its probability is exactly 0. Unlike with -inf, 0 * log 0
and its gradient are 0 and not NaN."""


class Categoricals:
    """K independent categorical distributions.

    ``logits``: float32 [..., sum(sizes)]. ``mask``: bool of the same shape, True where a category
    is allowed. A part whose categories are all masked out counts as not masked (environments send
    such masks with final observations).
    """

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None) -> None:
        assert logits.shape[-1] == sum(sizes), (tuple(logits.shape), sizes)
        self._single = len(sizes) == 1
        self.allowed = None
        if mask is not None:
            assert mask.shape == logits.shape and mask.dtype == torch.bool, (
                f"action mask {tuple(mask.shape)} {mask.dtype}, logits {tuple(logits.shape)}"
            )
        if not self._single:
            logits, mask, self.allowed = _by_part(logits, sizes, mask)
        if mask is not None:
            mask = mask | ~mask.any(-1, keepdim=True)
            self.allowed = mask if self.allowed is None else mask & self.allowed
        if self.allowed is not None:
            logits = torch.where(self.allowed, logits, FORBIDDEN)
        self.log_probs = logits.log_softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Return a sample, int64 [..., K] ([...] for one part): argmax p_i / e_i, e_i ~ Exp(1).

        Exponential draws are never 0, so a category of probability 0 is never drawn. This takes a
        tenth of the time of torch.multinomial at 16 rows.
        """
        noise = torch.empty_like(self.log_probs).exponential_(generator=generator)
        return torch.div(self.probs.detach(), noise, out=noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, indices: Tensor) -> Tensor:
        """Return the log-probability [...], summed over the parts, of ``indices`` (int64, in the
        shape of a sample)."""
        each = self.log_probs.gather(-1, indices.unsqueeze(-1)).squeeze(-1)
        return each if self._single else each.sum(-1)

    def entropy(self) -> Tensor:
        return -self._total(self.probs * self.log_probs)

    def symmetric_kl_to_uniform(self) -> Tensor:
        """Return (KL(p, u) + KL(u, p)) / 2 [...], u being uniform over the allowed categories.

        It equals (sum_i p_i log p_i - mean_i log p_i) / 2, because the two log n cancel.
        """
        return 0.5 * self._total((self.probs - self.uniform()) * self.log_probs)

    def uniform(self) -> Tensor | float:
        """Return the probability of each category if all that are allowed have the same."""
        if self.allowed is None:
            return 1.0 / self.log_probs.shape[-1]
        return self.allowed.to(self.log_probs.dtype) / self.allowed.sum(-1, keepdim=True)

    def kl(self, other: Categoricals) -> Tensor:
        """Return KL(self, other) [...], summed over the parts. Both must allow the same
        categories."""
        return self._total(self.probs * (self.log_probs - other.log_probs))

    def _total(self, x: Tensor) -> Tensor:
        return x.sum(-1) if self._single else x.sum((-2, -1))


def _by_part(
    logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return logits and mask as [..., K, N], and which categories are not padding (None: all)."""
    shape = (*logits.shape[:-1], len(sizes), max(sizes))
    if min(sizes) == max(sizes):
        return logits.reshape(shape), None if mask is None else mask.reshape(shape), None
    index, real = _padding(sizes, logits.device)
    logits = logits.index_select(-1, index).reshape(shape)
    if mask is not None:
        mask = mask.index_select(-1, index).reshape(shape) & real
    return logits, mask, real


@lru_cache(maxsize=64)
def _padding(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where each padded logit comes from (int64 [K * N]) and whether it is real (bool
    [K, N])."""
    with torch.inference_mode(False):  # built while acting, used in training too
        column = torch.arange(max(sizes), device=device)
        size = torch.tensor(sizes, device=device)
        real = column < size[:, None]
        start = size.cumsum(0) - size
        index = torch.where(real, start[:, None] + column, 0).flatten()
    return index, real


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


@dataclass(frozen=True)
class _Leaf:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_box: bool
    start: int
    """Index of the leaf's first element among all discrete, or all box, elements."""

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + math.prod(self.shape))


@dataclass(frozen=True)
class ActionLayout:
    """The place of each action leaf among the parameters. Build it once with `action_layout`."""

    leaves: tuple[_Leaf, ...]
    sizes: tuple[int, ...]
    """Number of categories of each discrete element."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Upper bound of each box element, as ``low`` is its lower bound."""

    @property
    def num_logits(self) -> int:
        return sum(self.sizes)

    @property
    def num_boxes(self) -> int:
        return len(self.low)

    def head_size(self, *, state_std: bool) -> int:
        """Return the number of outputs that the policy head needs: all parameters of the
        distribution with ``state_std``, all but the log standard deviations (which come last)
        without."""
        return self.num_logits + self.num_boxes * (2 if state_std else 1)

    @property
    def is_bounded(self) -> bool:
        pairs = zip(self.low, self.high, strict=True)
        return all(math.isfinite(lo) and math.isfinite(hi) and lo < hi for lo, hi in pairs)


def action_layout(actions: Mapping[str, ActionSpec]) -> ActionLayout:
    """Return the layout of the distribution's parameters for these action leaves."""
    leaves: list[_Leaf] = []
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    for name, spec in actions.items():
        is_box = spec.kind == "box"
        start = len(low) if is_box else len(sizes)
        leaves.append(_Leaf(name, spec.shape, getattr(torch, spec.dtype), is_box, start))
        sizes, low, high = sizes + spec.categories, low + spec.low, high + spec.high
    return ActionLayout(tuple(leaves), sizes, low, high)


class ActionDistribution:
    """The distribution with ``parameters`` [..., P], whose order the head of this file gives.

    Parameters may be of any float dtype; the maths is float32. ``mask``: bool [..., number of
    logits], True where a category is allowed, in the order of the logits. ``squash``: boxes are
    tanh-squashed into their bounds; otherwise they are plain Gaussians, which the environment
    clips. Every result but the actions is float32 [...]; so is the attribute ``parameters``.
    """

    def __init__(
        self,
        actions: Mapping[str, ActionSpec] | ActionLayout,
        parameters: Tensor,
        mask: Tensor | None = None,
        squash: bool = False,
    ) -> None:
        layout = actions if isinstance(actions, ActionLayout) else action_layout(actions)
        self._layout = layout
        self._discrete: Categoricals | None = None
        self._box: Gaussian | None = None
        expected = layout.head_size(state_std=True)
        assert parameters.shape[-1] == expected, (tuple(parameters.shape), expected)
        self.parameters = parameters = parameters.float()
        if not layout.low:
            self._discrete = Categoricals(parameters, layout.sizes, mask)
            return
        if layout.sizes:
            logits = parameters[..., : layout.num_logits]
            self._discrete = Categoricals(logits, layout.sizes, mask)
        mean, log_std = parameters[..., layout.num_logits :].chunk(2, -1)
        low, high = bounds_of(layout, parameters.device) if squash else (None, None)
        self._box = Gaussian(mean, log_std, low, high)

    def sample(
        self, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return a sample, leaf name -> [..., *shape] in the leaf's dtype, without gradient.

        ``noise`` [..., number of box elements]: standard normal numbers for the boxes; drawn from
        the generator if None."""
        return self._leaves(
            None if self._discrete is None else self._discrete.sample(generator),
            None if self._box is None else self._box.sample(generator, noise),
        )

    def mode(self) -> dict[str, Tensor]:
        """Return the most likely action of every row, leaf name -> [..., *shape]."""
        return self._leaves(
            None if self._discrete is None else self._discrete.mode(),
            None if self._box is None else self._box.mode(),
        )

    def log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Return the log-probability [...] of actions in the form that `sample` returns.

        The density of squashed boxes is with respect to the squashed action."""
        if self._box is None:
            return self._discrete_log_prob(actions)
        boxes = torch.cat(self._flat(actions, is_box=True), -1)
        log_prob = self._box.log_prob(boxes)
        return log_prob if self._discrete is None else log_prob + self._discrete_log_prob(actions)

    def entropy(self) -> Tensor:
        """Return the entropy [...], summed over the leaves. For squashed boxes it is exact to 1e-6
        per element (`Gaussian.entropy`)."""
        if self._box is None:
            assert self._discrete is not None
            return self._discrete.entropy()
        entropy = self._box.entropy()
        return entropy if self._discrete is None else entropy + self._discrete.entropy()

    def symmetric_kl_to_uniform(self) -> Tensor:
        """Return the divergence [...] from the uniform distribution u, summed over the elements.

        Discrete elements: (KL(p, u) + KL(u, p)) / 2 over the allowed categories. Box elements:
        minus their entropy, which is KL(p, u) up to a constant; KL(u, p) does not exist for a
        Gaussian, and u does not exist without bounds."""
        if self._box is None:
            assert self._discrete is not None
            return self._discrete.symmetric_kl_to_uniform()
        box = -self._box.entropy()
        return box if self._discrete is None else box + self._discrete.symmetric_kl_to_uniform()

    def kl(self, other: ActionDistribution) -> Tensor:
        """Return KL(self, other) [...]. Both must be over the same actions under the same mask."""
        if self._box is None:
            assert self._discrete is not None and other._discrete is not None
            return self._discrete.kl(other._discrete)
        assert other._box is not None
        box = self._box.kl(other._box)
        if self._discrete is None:
            return box
        assert other._discrete is not None
        return box + self._discrete.kl(other._discrete)

    def _discrete_log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        assert self._discrete is not None
        layout = self._layout
        if len(layout.leaves) == 1 and layout.leaves[0].shape == ():
            return self._discrete.log_prob(actions[layout.leaves[0].name])
        indices = torch.cat(self._flat(actions, is_box=False), -1).long()
        return self._discrete.log_prob(indices.squeeze(-1) if len(layout.sizes) == 1 else indices)

    def _flat(self, actions: Mapping[str, Tensor], is_box: bool) -> list[Tensor]:
        """Return the box leaves, or the discrete leaves, each as [..., elements]."""
        chosen = [leaf for leaf in self._layout.leaves if leaf.is_box == is_box]
        return [
            x.reshape(*x.shape[: x.ndim - len(leaf.shape)], -1)
            for leaf, x in ((leaf, actions[leaf.name]) for leaf in chosen)
        ]

    def _leaves(self, indices: Tensor | None, boxes: Tensor | None) -> dict[str, Tensor]:
        layout = self._layout
        if len(layout.leaves) == 1 and layout.leaves[0].shape == () and indices is not None:
            return {layout.leaves[0].name: indices}
        if indices is not None and len(layout.sizes) == 1:
            indices = indices.unsqueeze(-1)
        actions: dict[str, Tensor] = {}
        for leaf in layout.leaves:
            elements = boxes if leaf.is_box else indices
            assert elements is not None
            flat = elements[..., leaf.elements].to(leaf.dtype)
            actions[leaf.name] = flat.reshape(*flat.shape[:-1], *leaf.shape)
        return actions


@lru_cache(maxsize=64)
def bounds_of(layout: ActionLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return low and high, float64 [number of box elements]. Raises ValueError if an element is
    unbounded or has low >= high."""
    if not layout.is_bounded:
        raise ValueError(
            f"squashed actions need finite bounds with low < high, but the Box actions have low "
            f"{layout.low} and high {layout.high}; leave squash_actions off, or bound the Box"
        )
    with torch.inference_mode(False):  # built while acting, used in training too
        low = torch.tensor(layout.low, dtype=torch.float64, device=device)
        return low, torch.tensor(layout.high, dtype=torch.float64, device=device)

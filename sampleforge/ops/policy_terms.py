"""What the loss of a policy needs of the action distribution, with derivatives by hand.

`ActionDistribution` computes the same by autograd, which records every operation and runs as many
again backward: for a minibatch of a few hundred steps this takes several times as long as the
arithmetic. The tests compare the two, and the derivatives with finite differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.ops.distributions import (
    ActionDistribution,
    ActionLayout,
    Categoricals,
    Gaussian,
    bounds_of,
    log_slope,
    mean_log_two_cosh,
    unsquash,
)


class ActionColumns(NamedTuple):
    """The actions of N steps in the form that `PolicyTerms` needs; see `action_columns`."""

    indices: Tensor | None
    """int64 [N, 1] for one discrete element, [N, K, 1] for K; None without any."""
    boxes: Tensor | None
    """float32 [N, n]: the Gaussian numbers u of the box elements; None without any."""
    log_slope: Tensor | None
    """float32 [N, n]: log da/du of squashed box elements; None without any."""
    mask: Tensor | None
    """bool [N, number of logits], True where a category is allowed; None without action masks."""


def action_columns(
    layout: ActionLayout, actions: Mapping[str, Tensor], mask: Tensor | None, *, squash: bool
) -> ActionColumns:
    """Return the columns of N steps. ``actions``: leaf -> [N, *shape]. ``mask`` and ``squash`` are
    those of `ActionDistribution`."""
    indices = boxes = slope = None
    if layout.sizes:
        indices = _flat(layout, actions, is_box=False).long()
        indices = indices if len(layout.sizes) == 1 else indices.unsqueeze(-1)
    if layout.low:
        boxes = _flat(layout, actions, is_box=True)
        if squash:
            low, high = bounds_of(layout, boxes.device)
            half = (high - low) / 2
            boxes = unsquash(boxes, low, half)
            slope = log_slope(boxes, half)
        boxes = boxes.float()
    return ActionColumns(indices, boxes, slope, mask)


class PolicyTerms:
    """Log-probabilities of actions, entropies, and what depends on them.

    ``parameters`` [N, P] are those of an `ActionDistribution`, float32 or float64. ``log_prob``,
    ``entropy`` [N] are as its methods return them. Only for use without autograd.
    """

    def __init__(
        self, layout: ActionLayout, parameters: Tensor, columns: ActionColumns, *, squash: bool
    ) -> None:
        self._discrete: _Discrete | None = None
        self._box: _Box | None = None
        if layout.sizes:
            logits = parameters[:, : layout.num_logits] if layout.low else parameters
            self._discrete = _Discrete(layout.sizes, logits, columns)
        if layout.low:
            self._box = _Box(layout, parameters[:, layout.num_logits :], columns, squash)
        parts = [part for part in (self._box, self._discrete) if part is not None]
        self._parts = parts
        self.log_prob, self.entropy = parts[0].log_prob, parts[0].entropy
        for part in parts[1:]:
            self.log_prob = self.log_prob + part.log_prob
            self.entropy = self.entropy + part.entropy

    def symmetric_kl_to_uniform(self) -> Tensor:
        """Return what `ActionDistribution.symmetric_kl_to_uniform` returns, [N]."""
        box = None if self._box is None else -self._box.entropy
        if self._discrete is None:
            assert box is not None
            return box
        discrete = self._discrete.symmetric_kl()
        return discrete if box is None else box + discrete

    def gradient(
        self, by_log_prob: Tensor, by_entropy: Tensor | None, by_symmetric_kl: Tensor | None
    ) -> Tensor:
        """Return the derivative [N, P] of a loss by the parameters, from its derivatives [N] by
        the log-probabilities, the entropies and the divergences from uniform (None: zeros)."""
        gradients = []
        if self._discrete is not None:
            gradients.append(self._discrete.gradient(by_log_prob, by_entropy, by_symmetric_kl))
        if self._box is not None:
            if by_symmetric_kl is not None:
                by_entropy = (
                    -by_symmetric_kl if by_entropy is None else by_entropy - by_symmetric_kl
                )
            gradients += self._box.gradient(by_log_prob, by_entropy)
        return gradients[0] if len(gradients) == 1 else torch.cat(gradients, 1)


class AutogradTerms:
    """What `PolicyTerms` has, of any distribution, by autograd. ``make(parameters)`` returns the
    distribution of N steps with ``parameters`` [N, P]; ``actions``: leaf -> [N, *shape]."""

    def __init__(
        self,
        make: Callable[[Tensor], ActionDistribution],
        parameters: Tensor,
        actions: Mapping[str, Tensor],
    ) -> None:
        self._parameters = parameters.detach().requires_grad_()
        with torch.enable_grad():
            self._distribution = make(self._parameters)
            self._outputs = [
                self._distribution.log_prob(actions),
                self._distribution.entropy(),
            ]
        self.log_prob, self.entropy = (output.detach() for output in self._outputs)

    def symmetric_kl_to_uniform(self) -> Tensor:
        """Return what `ActionDistribution.symmetric_kl_to_uniform` returns, [N]."""
        with torch.enable_grad():
            self._outputs.append(self._distribution.symmetric_kl_to_uniform())
        return self._outputs[-1].detach()

    def gradient(
        self, by_log_prob: Tensor, by_entropy: Tensor | None, by_symmetric_kl: Tensor | None
    ) -> Tensor:
        """Return the derivative [N, P], see `PolicyTerms.gradient`; call it once."""
        derivatives = (by_log_prob, by_entropy, by_symmetric_kl)
        given = [
            (output, derivative)
            for output, derivative in zip(self._outputs, derivatives, strict=False)
            if derivative is not None
        ]
        outputs, derived = zip(*given, strict=True)
        return torch.autograd.grad(outputs, self._parameters, derived)[0]


class _Discrete:
    """The part of the discrete elements. With p the probabilities, z the logits and H the entropy
    of an element: d log p_a / dz_j = [a = j] - p_j, dH / dz_j = -p_j (log p_j + H)."""

    def __init__(self, sizes: tuple[int, ...], logits: Tensor, columns: ActionColumns) -> None:
        assert columns.indices is not None
        self._sizes, self._indices = sizes, columns.indices
        self._all = Categoricals(logits, sizes, columns.mask)
        log_probs, probs = self._all.log_probs, self._all.probs
        log_prob = log_probs.gather(-1, columns.indices)
        self._minus_entropy = (probs * log_probs).sum(-1, keepdim=True)  # of each element
        if len(sizes) == 1:
            self.log_prob, self.entropy = log_prob.squeeze(-1), -self._minus_entropy.squeeze(-1)
        else:
            self.log_prob = log_prob.sum((-2, -1))
            self.entropy = -self._minus_entropy.sum((-2, -1))

    def symmetric_kl(self) -> Tensor:
        return self._all.symmetric_kl_to_uniform()

    def gradient(
        self, by_log_prob: Tensor, by_entropy: Tensor | None, by_symmetric_kl: Tensor | None
    ) -> Tensor:
        log_probs, probs = self._all.log_probs, self._all.probs
        of_actions = self._column(by_log_prob)
        if by_entropy is None:
            gradient = probs * -of_actions
        else:
            slope = (self._minus_entropy - log_probs).mul_(self._column(by_entropy))
            gradient = slope.sub_(of_actions).mul_(probs)
        if by_symmetric_kl is not None:  # (p_j (log p_j + H + 1) - u_j) / 2
            slope = (log_probs - self._minus_entropy).add_(1.0).mul_(probs)
            slope.sub_(self._all.uniform())
            gradient.add_(slope.mul_(0.5 * self._column(by_symmetric_kl)))
        of_actions = of_actions if len(self._sizes) == 1 else of_actions.expand_as(self._indices)
        gradient.scatter_add_(-1, self._indices, of_actions)
        if self._all.allowed is not None:
            gradient = torch.where(self._all.allowed, gradient, 0.0)
        if len(self._sizes) == 1:
            return gradient
        gradient = gradient.flatten(1)
        if min(self._sizes) == max(self._sizes):
            return gradient
        return gradient.index_select(1, _not_padding(self._sizes, gradient.device))

    def _column(self, x: Tensor) -> Tensor:
        """Return ``x`` [N] in a shape that goes with the probabilities."""
        return x.unsqueeze(-1) if len(self._sizes) == 1 else x.view(-1, 1, 1)


class _Box:
    """The part of the box elements. With z = (u - mean) / std: d log p / d mean = z / std and
    d log p / d log std = z^2 - 1."""

    def __init__(
        self, layout: ActionLayout, parameters: Tensor, columns: ActionColumns, squash: bool
    ) -> None:
        assert columns.boxes is not None
        mean, self._raw_log_std = parameters.chunk(2, -1)
        low, high = bounds_of(layout, parameters.device) if squash else (None, None)
        self._gaussian = Gaussian(mean, self._raw_log_std, low, high)
        log_std = self._gaussian.log_std
        self._inverse_std = (-log_std).exp()
        self._z = (columns.boxes - mean) * self._inverse_std
        density = -0.5 * self._z.square() - log_std - 0.5 * math.log(2 * math.pi)
        entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
        if self._gaussian.bounds is not None:
            assert columns.log_slope is not None
            density = density - columns.log_slope
            log_half = self._gaussian.bounds[1].log().to(entropy.dtype)
            log_cosh, self._by_mean, self._by_log_std = mean_log_two_cosh(mean, log_std)
            entropy = entropy + log_half + 2.0 * (math.log(2.0) - log_cosh)
        self.log_prob, self.entropy = density.sum(-1), entropy.sum(-1)

    def gradient(self, by_log_prob: Tensor, by_entropy: Tensor | None) -> list[Tensor]:
        """Return the derivatives [N, n] by the means and by the log standard deviations."""
        outer = by_log_prob.unsqueeze(-1)
        by_mean = outer * (self._z * self._inverse_std)
        by_log_std = outer * (self._z.square() - 1.0)
        if by_entropy is not None:
            outer = by_entropy.unsqueeze(-1)
            by_log_std = by_log_std + outer
            if self._gaussian.bounds is not None:
                by_mean = by_mean - 2.0 * outer * self._by_mean
                by_log_std = by_log_std - 2.0 * outer * self._by_log_std
        in_range = self._gaussian.log_std == self._raw_log_std
        return [by_mean, torch.where(in_range, by_log_std, 0.0)]


def _flat(layout: ActionLayout, actions: Mapping[str, Tensor], *, is_box: bool) -> Tensor:
    """Return the box leaves, or the discrete leaves, side by side: [N, elements]."""
    leaves = [actions[leaf.name] for leaf in layout.leaves if leaf.is_box == is_box]
    columns = [leaf.reshape(len(leaf), -1) for leaf in leaves]
    return columns[0] if len(columns) == 1 else torch.cat(columns, 1)


@lru_cache(maxsize=64)
def _not_padding(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the places, int64 [sum(sizes)], of the categories among the padded ones of
    `Categoricals`, [K * N] with N the largest size."""
    places = [part * max(sizes) + i for part, size in enumerate(sizes) for i in range(size)]
    return torch.tensor(places, device=device)

"""The gradient of PPO's loss by the outputs of the network, by hand.

`sampleforge.ops.surrogate` has the terms of the loss, and autograd finds the same gradient from
them, in about three times as many operations. The tests compare the two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.ops.policy_terms import ActionColumns, PolicyTerms


class PpoCoefficients(NamedTuple):
    """The settings of the loss; see `sampleforge.algos.config.AppoLossConfig`."""

    clip_ratio: float
    value_clip: float | None
    kl_coeff: float
    symmetric_kl: bool
    """Whether the exploration loss is the divergence from uniform; else minus the entropy."""


class PpoColumns(NamedTuple):
    """What the loss of a minibatch of N steps depends on beside the network's outputs: all [N].

    A step's ``weight`` is its share of the whole minibatch, of all ranks: the weights of all add up
    to 1, and it is 0 where ``masked_out``. Values are in units of the model's ``value_scale``.
    Where ``masked_out``, everything but the actions and ``log_prob`` is 0.
    """

    actions: ActionColumns
    masked_out: Tensor
    """bool: the steps that do not count."""
    log_prob: Tensor
    """Log-probability of the action under the policy that took it."""
    weighted_loss: Tensor
    """Minus the weight times the advantage."""
    minus_value: Tensor
    """Minus the value at sampling."""
    target: Tensor
    """The value's target less the value at sampling."""
    weight: Tensor
    value_weight: Tensor
    """The weight times 2 times the coefficient of the value loss."""
    exploration_weight: Tensor
    """The weight times the exploration coefficient, with the sign that the loss has for
    `PpoCoefficients.symmetric_kl`: negative for the entropy."""


class StepTerms(NamedTuple):
    """What the terms of the loss depend on, of each step; all [...]."""

    log_ratio: Tensor
    """log pi - log mu, 0 where masked out."""
    moved: Tensor
    """The value less the value at sampling, 0 where masked out."""
    entropy: Tensor
    symmetric_kl: Tensor | None
    """None if it is not part of the loss."""


class PpoGradient(NamedTuple):
    """The derivatives of the loss, and what its value depends on; see `ppo_gradient`."""

    by_parameters: Tensor  # [N, P]
    by_values: Tensor  # [N]
    terms: StepTerms  # [N]


def ppo_gradient(
    terms: PolicyTerms,
    values: Tensor,
    value_factor: Tensor,
    columns: PpoColumns,
    coefficients: PpoCoefficients,
    *,
    explores: bool,
) -> PpoGradient:
    """Return the derivatives by the distribution's parameters [N, P] and by ``values`` [N] of the
    sum of a minibatch's terms: `clipped_surrogate` + value coefficient * `clipped_value_loss` +
    exploration loss + KL coefficient * `approx_kl`.

    For inputs that require no gradient. ``values`` times ``value_factor`` [] is in units of
    ``value_scale``. ``explores``: whether the exploration coefficient is not 0. Where two branches
    of a minimum or maximum are equal although the ratio, or the value, is outside its range,
    autograd takes half of each branch's derivative and this the whole of the unclipped one's. NaN
    and inf of steps that count reach the gradient.
    """
    # In place where possible: torch.where takes twice as long as masked_fill_.
    log_ratio = (terms.log_prob - columns.log_prob).masked_fill_(columns.masked_out, 0.0)
    ratio = log_ratio.exp()
    free = ratio * columns.weighted_loss
    low, high = 1.0 / (1.0 + coefficients.clip_ratio), 1.0 + coefficients.clip_ratio
    clipped = ratio.clamp_(low, high).mul_(columns.weighted_loss)
    by_log_prob = free.masked_fill_(clipped > free, 0.0)
    if coefficients.kl_coeff:
        by_log_prob.addcmul_(columns.weight, log_ratio.expm1(), value=coefficients.kl_coeff)

    weight = columns.exploration_weight if explores else None
    symmetric_kl = terms.symmetric_kl_to_uniform() if coefficients.symmetric_kl else None
    if symmetric_kl is None:
        by_parameters = terms.gradient(by_log_prob, weight, None)
    else:
        by_parameters = terms.gradient(by_log_prob, None, weight)

    moved = torch.addcmul(columns.minus_value, values, value_factor)
    moved = moved.masked_fill_(columns.masked_out, 0.0)
    error = moved - columns.target
    by_values = error * columns.value_weight
    if coefficients.value_clip is not None:
        clip = coefficients.value_clip
        near = moved.clamp(-clip, clip).sub_(columns.target)
        by_values.masked_fill_(near.abs_() > error.abs_(), 0.0)
    by_values.mul_(value_factor)
    return PpoGradient(
        by_parameters, by_values, StepTerms(log_ratio, moved, terms.entropy, symmetric_kl)
    )

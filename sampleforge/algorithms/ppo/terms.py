"""The terms of PPO's loss, each with its derivative: the one place where a term is computed.

The loss of a minibatch is the sum over its steps of

    weight * (surrogate + value coefficient * value error + exploration coefficient * exploration
              + KL coefficient * KL)

A term is a function of a few numbers of each step (`StepTerms`, `Steps`), elementwise. Beside it,
``..._slope`` is its derivative by the first of them, with the weight. `gradient` adds the
derivatives up, by the outputs of the network; `sums` and `metrics_of` give the values, which are
only reported.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.ops.masked import moment_columns
from sampleforge.ops.policy_terms import AutogradTerms, PolicyTerms


class Steps(NamedTuple):
    """What the loss takes of each step beside the outputs of the network; all of one shape [...].

    Values and targets are in units of the model's ``value_scale``. Where ``masked_out``, all but
    ``log_prob`` are 0.
    """

    masked_out: Tensor
    """bool: the steps that do not count."""
    weight: Tensor
    """The share of the step in its minibatch, of all ranks: all of a minibatch add up to 1."""
    log_prob: Tensor
    """Log-probability of the action under the policy that took it."""
    value: Tensor
    """The value at sampling."""
    wanted: Tensor
    """The target of the value less the value at sampling."""
    cost: Tensor
    """Minus the advantage, normalised if the config says so."""
    weighted_cost: Tensor
    """``weight`` * ``cost``."""
    value_weight: Tensor
    """2 * value coefficient * ``weight``."""
    exploration_weight: Tensor
    """exploration coefficient * ``weight``."""


class StepTerms(NamedTuple):
    """What the terms of the loss take of the outputs of the network, of each step; all [...]."""

    log_ratio: Tensor
    """log pi - log mu, mu being the policy that took the action; 0 where masked out."""
    moved: Tensor
    """The value less the value at sampling, in units of ``value_scale``; 0 where masked out."""
    entropy: Tensor
    symmetric_kl: Tensor | None
    """The divergence from the uniform policy; None if it is not part of the loss."""


def terms_of(
    policy: PolicyTerms | AutogradTerms, values: Tensor, steps: Steps, config: PpoLossConfig
) -> StepTerms:
    """Return the terms of N steps, of which ``steps.wanted`` and ``steps.cost`` need not be known
    yet. ``values`` [N] are in units of ``value_scale``."""
    # In place where possible: torch.where takes twice as long as masked_fill_. An ignored action
    # may have any log-ratio: it must not reach an exponential.
    return StepTerms(
        (policy.log_prob - steps.log_prob).masked_fill_(steps.masked_out, 0.0),
        (values - steps.value).masked_fill_(steps.masked_out, 0.0),
        policy.entropy,
        policy.symmetric_kl_to_uniform() if config.exploration == "symmetric_kl" else None,
    )


def surrogate(log_ratio: Tensor, cost: Tensor, clip_ratio: float) -> Tensor:
    """Return PPO's policy loss -min(r A, clip(r, 1/(1+e), 1+e) A), with ``cost`` = -A.

    arXiv 1707.06347, eq. 7, with a range that is symmetric in log r.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 / (1.0 + clip_ratio), 1.0 + clip_ratio)
    return torch.maximum(ratio * cost, clipped * cost)


def surrogate_slope(log_ratio: Tensor, cost: Tensor, clip_ratio: float) -> Tensor:
    """Return the derivative of `surrogate` by ``log_ratio``: r ``cost``, or 0 where it is clipped.
    Both are linear in ``cost``, so a weight is a factor of it."""
    ratio = log_ratio.exp()
    free = ratio * cost
    clipped = ratio.clamp_(1.0 / (1.0 + clip_ratio), 1.0 + clip_ratio).mul_(cost)
    return free.masked_fill_(clipped > free, 0.0)


def is_clipped(log_ratio: Tensor, clip_ratio: float) -> Tensor:
    """Return which ratios lie outside [1/(1+e), 1+e], bool."""
    return log_ratio.abs() > math.log1p(clip_ratio)


def kl(log_ratio: Tensor) -> Tensor:
    """Return an estimate of KL(mu, pi) on actions of mu: r - 1 - log r.

    It is the estimator k3 of http://joschu.net/blog/kl-approx.html, which is never negative.
    """
    return log_ratio.expm1() - log_ratio


def kl_slope(log_ratio: Tensor, weight: Tensor) -> Tensor:
    """Return the derivative of ``weight`` * `kl` by ``log_ratio``: r - 1."""
    return log_ratio.expm1().mul_(weight)


def value_error(moved: Tensor, wanted: Tensor, clip: float | None) -> Tensor:
    """Return max((v - R)^2, (clip(v, v_old +- clip) - R)^2), or (v - R)^2 if ``clip`` is None, with
    ``moved`` = v - v_old and ``wanted`` = R - v_old.

    The customary factor 1/2 is part of the value coefficient.
    """
    error = (moved - wanted).square()
    if clip is None:
        return error
    return torch.maximum(error, (moved.clamp(-clip, clip) - wanted).square())


def value_error_slope(moved: Tensor, wanted: Tensor, clip: float | None, weight: Tensor) -> Tensor:
    """Return the derivative of ``weight`` / 2 * `value_error` by ``moved``: ``weight`` (v - R), or
    0 where the value that is kept near the old one has the larger error."""
    error = moved - wanted
    slope = error * weight
    if clip is None:
        return slope
    near = moved.clamp(-clip, clip).sub_(wanted)
    return slope.masked_fill_(near.abs_() > error.abs_(), 0.0)


def gradient(
    policy: PolicyTerms | AutogradTerms, terms: StepTerms, steps: Steps, config: PpoLossConfig
) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the loss of N steps by the parameters of the action distribution
    [N, P] and by the values [N], in units of ``value_scale``.

    Where both branches of a maximum are equal although the ratio, or the value, is outside its
    range, autograd takes half of each branch's derivative and this the whole of the unclipped
    one's. NaN and inf of steps that count reach the gradient.
    """
    log_ratio = terms.log_ratio
    by_log_prob = surrogate_slope(log_ratio, steps.weighted_cost, config.clip_ratio)
    if config.kl_coeff:
        by_log_prob.add_(kl_slope(log_ratio, config.kl_coeff * steps.weight))
    by_entropy = by_symmetric_kl = None
    if config.exploration_coeff and config.exploration == "entropy":
        by_entropy = -steps.exploration_weight
    elif config.exploration_coeff:
        by_symmetric_kl = steps.exploration_weight
    by_parameters = policy.gradient(by_log_prob, by_entropy, by_symmetric_kl)
    return by_parameters, value_error_slope(
        terms.moved, steps.wanted, config.value_clip, steps.value_weight
    )


def sums(
    terms: StepTerms, steps: Steps, counts: Tensor, scale: Tensor, config: PpoLossConfig
) -> tuple[list[str], Tensor]:
    """Return the names of the metrics that are means over the steps [...], and, float64 [K], the
    sums of their elements, each times its ``counts`` [...]; see `metrics_of`. ``scale`` []: the
    unit of values and targets."""
    log_ratio = terms.log_ratio
    columns = {
        "policy_loss": surrogate(log_ratio, steps.cost, config.clip_ratio),
        "value_loss": value_error(terms.moved, steps.wanted, config.value_clip),
        "entropy": terms.entropy,
        "approx_kl": kl(log_ratio),
        "clip_fraction": is_clipped(log_ratio, config.clip_ratio),
        "value_mean": (terms.moved + steps.value) * scale,
        **moment_columns(steps.value * scale, (steps.wanted + steps.value) * scale),
    }
    if terms.symmetric_kl is not None:
        columns["exploration_loss"] = terms.symmetric_kl
    stacked = torch.stack(list(columns.values())).masked_fill_(steps.masked_out, 0.0)
    return list(columns), stacked.flatten(1) @ counts.flatten().double()


def metrics_of(names: list[str], means: Tensor, config: PpoLossConfig) -> dict[str, Tensor]:
    """Return the metrics of the loss, from the ``means`` [K] over the steps of what `sums` sums
    up."""
    metrics = dict(zip(names, means.unbind(), strict=True))
    exploration_loss = metrics.pop("exploration_loss", -metrics["entropy"])
    metrics["loss"] = (
        metrics["policy_loss"]
        + config.value_coeff * metrics["value_loss"]
        + float(config.exploration_coeff or 0.0) * exploration_loss
        + float(config.kl_coeff or 0.0) * metrics["approx_kl"]
    )
    metrics["target_mean"] = metrics["target_first"]
    return metrics

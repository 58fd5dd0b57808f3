"""The losses of deep Q-learning: as in Ape-X (Horgan et al. 2018, arXiv 1803.00933), of
distributions of returns (C51 and QR-DQN), and of sequences, with stored state and burn-in
(Kapturowski et al. 2019, R2D2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.models.passes_by_hand import QPasses
from sampleforge.models.q_heads import Categorical, Quantiles
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.q_learning import (
    project,
    quantile_huber_loss,
    rescale,
    sequence_priority,
    unrescale,
)
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.replay.samples import Sequences, Transitions, importance_weights
from sampleforge.spec import ACTION


@dataclass(frozen=True)
class DqnOutput:
    """The loss of a batch: a scalar to differentiate; the errors [B] that become priorities
    (absolute TD errors, or losses of distributions); scalars to report. ``errors`` and ``metrics``
    are detached, on the device.

    If several learners share a batch, ``loss`` and ``metrics`` are means over this learner's part,
    and ``weight`` (float64 []) is its fraction of what the loss is a mean over.
    """

    loss: torch.Tensor
    errors: torch.Tensor
    metrics: dict[str, torch.Tensor]
    weight: torch.Tensor


@torch.no_grad()
def q_targets(
    online: QNetwork | QPasses,
    target: QNetwork | QPasses,
    batch: Transitions,
    config: DqnConfig,
) -> torch.Tensor:
    """Return the targets [B]: returns + discount * Q_target(next_obs, argmax_a Q(next_obs, a)).

    Q in the argmax is that of the online network (``--double``; van Hasselt et al. 2016, arXiv
    1509.06461) or of the target network. With ``--value-rescaling``:
    h(returns + discount * h^-1(...))."""
    q = target.q_values(batch.next_obs)
    chooser = online.q_values(batch.next_obs) if config.double else q
    best = online.distribution(chooser, batch.next_obs).best.actions
    next_values = q.gather(1, best.unsqueeze(1)).squeeze(1)
    if config.value_rescaling:
        return rescale(batch.returns + batch.discount * unrescale(next_values))
    return batch.returns + batch.discount * next_values


def huber(q: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Return the Huber loss of each TD error, or with a ``delta`` of 0 half its square, [...]."""
    if delta:
        return F.huber_loss(q, targets, reduction="none", delta=delta)
    return 0.5 * F.mse_loss(q, targets, reduction="none")


def dqn_loss(
    online: QNetwork,
    target: QNetwork,
    batch: Transitions,
    beta: float | torch.Tensor,
    config: DqnConfig,
    gather: Gather = alone,
) -> DqnOutput:
    """Return the importance-weighted mean Huber loss of the TD errors."""
    targets = q_targets(online, target, batch, config)
    q = online.q_values(batch.obs)
    q_taken = q.gather(1, batch.actions[ACTION].unsqueeze(1)).squeeze(1)
    errors = (targets - q_taken).detach().abs()
    each = huber(q_taken, targets, config.huber_delta)
    weights, share = importance_weights(batch.scaled_probability, beta, batch.count, gather)
    loss = (weights * each).mean()
    metrics = {
        "loss": loss.detach(),
        "td_error_max": errors.max(),
        "q_mean": q_taken.detach().mean(),
        "importance_weight_mean": weights.mean(),
    }
    return DqnOutput(loss, errors, metrics, share)


@torch.no_grad()
def dqn_gradient(
    online: QPasses,
    target: QPasses,
    batch: Transitions,
    beta: float | torch.Tensor,
    config: DqnConfig,
) -> DqnOutput:
    """Set the gradients of the online network's parameters to those of `dqn_loss`, by hand, and
    return what it returns. The loss is detached. For a learner without others."""
    targets = q_targets(online, target, batch, config)
    index = batch.actions[ACTION].unsqueeze(1)
    q = online.q_values(batch.obs)
    q_taken = q.gather(1, index).squeeze(1)
    errors = q_taken - targets
    weights, share = importance_weights(batch.scaled_probability, beta, batch.count)
    delta = config.huber_delta
    slope = errors.clamp(-delta, delta) if delta else errors
    by_taken = slope * weights / len(weights)
    online.backward(torch.zeros_like(q).scatter_(1, index, by_taken.unsqueeze(1)))
    metrics = {
        "loss": torch.dot(by_taken, errors - 0.5 * slope),  # slope (error - slope / 2): Huber's
        "q_mean": q_taken.mean(),
        "importance_weight_mean": weights.mean(),
    }
    errors = errors.abs()
    return DqnOutput(metrics["loss"], errors, {**metrics, "td_error_max": errors.max()}, share)


class Losses(NamedTuple):
    """Per transition: the loss to differentiate, and, detached, the errors that become
    priorities."""

    each: Tensor  # [B]
    errors: Tensor  # [B], not negative
    metrics: dict[str, Tensor]


def distributional_loss(
    online: QNetwork,
    target: QNetwork,
    batch: Transitions,
    beta: float | torch.Tensor,
    config: DqnConfig,
    gather: Gather = alone,
) -> DqnOutput:
    """Return the importance-weighted mean loss of the distributions of the actions taken."""
    next_outputs = target_outputs(online, target, batch, double=config.double)
    predicted = _of(online.outputs(batch.obs), batch.actions[ACTION])
    distribution = online.value_distribution
    if isinstance(distribution, Categorical):
        losses = categorical_losses(distribution, predicted, next_outputs, batch)
    else:
        assert isinstance(distribution, Quantiles)
        losses = quantile_losses(distribution, predicted, next_outputs, batch, config.huber_delta)
    weights, share = importance_weights(batch.scaled_probability, beta, batch.count, gather)
    loss = (weights * losses.each).mean()
    metrics = {
        "loss": loss.detach(),
        "td_error_max": losses.errors.max(),
        "q_mean": distribution.mean(predicted.detach()).mean(),
        "importance_weight_mean": weights.mean(),
        **losses.metrics,
    }
    return DqnOutput(loss, losses.errors, metrics, share)


@torch.no_grad()
def target_outputs(
    online: QNetwork, target: QNetwork, batch: Transitions, *, double: bool
) -> Tensor:
    """Return the target network's outputs [B, K] for next_obs and argmax_a Q(next_obs, a), where Q
    is that of the online network (``double``) or of the target network."""
    outputs = target.outputs(batch.next_obs)
    chooser = online.q_values(batch.next_obs) if double else target.mean(outputs)
    return _of(outputs, online.distribution(chooser, batch.next_obs).best.actions)


def categorical_losses(
    support: Categorical, logits: Tensor, next_logits: Tensor, batch: Transitions
) -> Losses:
    """Return C51's cross-entropy of the target distribution, projected onto the atoms, and the
    predicted one (Bellemare et al. 2017, arXiv 1707.06887, algorithm 1).

    ``logits`` [B, K] are those of the prediction, ``next_logits`` [B, K] the target network's for
    the next observation. Priorities are KL(target | predicted), the part of the loss that learning
    can reduce (Hessel et al. 2018, Rainbow, arXiv 1710.02298)."""
    atoms = support.atoms
    with torch.no_grad():
        positions = support.moved(atoms, batch.returns, batch.discount)
        next_probabilities = next_logits.softmax(-1)
        target = project(positions, next_probabilities, atoms)
        entropy = -torch.xlogy(target, target).sum(-1)
        outside = ((positions < atoms[0]) | (positions > atoms[-1])) * next_probabilities
    each = -(target * logits.log_softmax(-1)).sum(-1)
    errors = (each.detach() - entropy).clamp(min=0)  # rounding
    return Losses(each, errors, {"outside_support": outside.sum(-1).mean()})


def quantile_losses(
    support: Quantiles, quantiles: Tensor, next_quantiles: Tensor, batch: Transitions, kappa: float
) -> Losses:
    """Return QR-DQN's quantile Huber loss between ``quantiles`` [B, K], the prediction, and the
    targets: returns + discount * ``next_quantiles`` [B, K], those of the target network.

    Priorities are the mean over the quantiles, which is independent of their number."""
    targets = support.moved(next_quantiles, batch.returns, batch.discount)
    each = quantile_huber_loss(quantiles, targets, kappa)
    return Losses(each, each.detach() / support.size, {})


def _of(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs [B, K] of ``actions`` [B] out of ``outputs`` [B, A, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[-1])
    return outputs.gather(1, index).squeeze(1)


def burnt_in(model: QNetwork, batch: Sequences, burn_in: int) -> torch.Tensor:
    """Return the recurrent state [B, S] after the first ``burn_in`` steps, without gradient.

    The stored state was computed by older weights; the burn-in brings it nearer to the state that
    the present weights would have computed."""
    if not burn_in:
        return batch.state
    obs = {name: leaf[:burn_in] for name, leaf in batch.obs.items()}
    with torch.no_grad():
        return model.unroll(obs, batch.state, batch.is_first[:burn_in])[1]


def sequence_q_values(model: QNetwork, batch: Sequences, burn_in: int) -> torch.Tensor:
    """Return the Q-values [L+1 - burn_in, B, A] of the observations after the burn-in."""
    state = burnt_in(model, batch, burn_in)
    obs = {name: leaf[burn_in:] for name, leaf in batch.obs.items()}
    return model.unroll(obs, state, batch.is_first[burn_in:])[0]


@torch.no_grad()
def sequence_targets(
    online_q: torch.Tensor,
    target_q: torch.Tensor,
    online: QNetwork,
    batch: Sequences,
    burn_in: int,
    *,
    double: bool,
    rescaled: bool,
) -> torch.Tensor:
    """Return the targets [L - burn_in, B]: h(returns + discount * h^-1(Q_target(s', a*))).

    s' is the state at the end of the step's window, a* the best action by the online network
    (``double``) or by the target network; h is the identity unless ``rescaled``. Targets of steps
    without a window (``steps`` is 0) have no meaning."""
    later = {name: leaf[burn_in:] for name, leaf in batch.obs.items()}
    best = online.distribution(online_q if double else target_q, later).best.actions
    values = target_q.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    steps = batch.steps[burn_in:]
    at = torch.arange(len(steps), device=steps.device).unsqueeze(1) + steps
    next_values = values.gather(0, at)
    returns, discount = batch.returns[burn_in:], batch.discount[burn_in:]
    if rescaled:
        return rescale(returns + discount * unrescale(next_values))
    return returns + discount * next_values


def r2d2_loss(
    online: QNetwork,
    target: QNetwork,
    batch: Sequences,
    beta: float | torch.Tensor,
    config: DqnConfig,
    burn_in: int,
    gather: Gather = alone,
) -> DqnOutput:
    """Return the importance-weighted Huber loss, the mean over the steps after the burn-in that
    have a window. ``errors`` of the output are the sequences' priorities [B]. Raises ValueError if
    no step is left after the burn-in."""
    length = len(batch.returns)
    if not 0 <= burn_in < length:
        raise ValueError(
            f"a burn-in of {burn_in} steps leaves nothing to learn of sequences of {length}; "
            "take fewer, or longer sequences"
        )
    online_q = sequence_q_values(online, batch, burn_in)
    with torch.no_grad():
        target_q = sequence_q_values(target, batch, burn_in)
    targets = sequence_targets(
        online_q,
        target_q,
        online,
        batch,
        burn_in,
        double=config.double,
        rescaled=bool(config.value_rescaling),
    )
    q_taken = online_q[:-1].gather(-1, batch.actions[ACTION][burn_in:].unsqueeze(-1)).squeeze(-1)
    counted = batch.steps[burn_in:] > 0
    each = huber(q_taken, targets, config.huber_delta)
    weights, share = importance_weights(batch.scaled_probability, beta, counted.sum, gather)
    count = counted.sum().clamp(min=1)
    loss = (weights * each).masked_fill(~counted, 0.0).sum() / count
    errors = (targets - q_taken).detach().masked_fill(~counted, 0.0)
    metrics = {
        "loss": loss.detach(),
        "td_error_max": errors.abs().max(),
        "q_mean": q_taken.detach().masked_fill(~counted, 0.0).sum() / count,
        "importance_weight_mean": weights.mean(),
    }
    return DqnOutput(loss, sequence_priority(errors, counted), metrics, share)

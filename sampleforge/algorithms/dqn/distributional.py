"""The losses of distributional Q-learning, C51 and QR-DQN, used in the place of `dqn.dqn_loss`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.loss import DqnOutput
from sampleforge.models.q_network import QNetwork
from sampleforge.models.value_distribution import Categorical, Quantiles
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.ops.value_distributions import project, quantile_huber_loss
from sampleforge.replay.importance import importance_weights
from sampleforge.replay.samples import Transitions
from sampleforge.spec import ACTION


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

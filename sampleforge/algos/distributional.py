"""Q-learning of whole distributions of returns: C51 and QR-DQN, in the place of `dqn.dqn_loss`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.algos.config import DqnConfig
from sampleforge.algos.dqn import DqnOutput, importance_weights
from sampleforge.models.q_network import QNetwork
from sampleforge.models.value_distribution import Categorical, Quantiles
from sampleforge.ops.value_distributions import project, quantile_huber_loss
from sampleforge.replay.transitions import Transitions


class Losses(NamedTuple):
    """Per transition: what to differentiate, and, detached, what priorities are made of."""

    each: Tensor  # [B]
    errors: Tensor  # [B], not negative
    metrics: dict[str, Tensor]


def distributional_loss(
    online: QNetwork, target: QNetwork, batch: Transitions, beta: float, config: DqnConfig
) -> DqnOutput:
    """Importance-weighted loss of the taken actions' distributions, in the mean."""
    following = following_outputs(online, target, batch, double=config.double)
    outputs = online.outputs(batch.obs)
    taken = _of(outputs, batch.action)
    distribution = online.value_distribution
    if isinstance(distribution, Categorical):
        found = categorical_losses(distribution, taken, following, batch)
    else:
        assert isinstance(distribution, Quantiles)
        found = quantile_losses(distribution, taken, following, batch, config.huber_delta)
    weights = importance_weights(batch.scaled_probability, beta)
    loss = (weights * found.each).mean()
    metrics = {
        "loss": loss.detach(),
        "td_error_max": found.errors.max(),
        "q_mean": distribution.mean(taken.detach()).mean(),
        "importance_weight_mean": weights.mean(),
        **found.metrics,
    }
    return DqnOutput(loss, found.errors, metrics)


@torch.no_grad()
def following_outputs(
    online: QNetwork, target: QNetwork, batch: Transitions, *, double: bool
) -> Tensor:
    """[B, K]: the target network's outputs for next_obs and argmax_a Q(next_obs, a), where Q is the
    online network's (double) or the target's own."""
    outputs = target.outputs(batch.next_obs)
    chooser = online.q_values(batch.next_obs) if double else target.mean(outputs)
    return _of(outputs, online.distribution(chooser, batch.next_obs).best.actions)


def categorical_losses(
    support: Categorical, logits: Tensor, following: Tensor, batch: Transitions
) -> Losses:
    """Cross-entropy of the target distribution, projected onto the atoms, and the predicted one
    (Bellemare et al. 2017, arXiv 1707.06887, algorithm 1), logits [B, K] both. Priorities are its
    divergence KL(target | predicted), which is what can be learned of it (Hessel et al. 2018,
    Rainbow, arXiv 1710.02298)."""
    atoms = support.atoms
    with torch.no_grad():
        positions = support.moved(atoms, batch.returns, batch.discount)
        following = following.softmax(-1)
        goal = project(positions, following, atoms)
        entropy = -torch.xlogy(goal, goal).sum(-1)
        outside = ((positions < atoms[0]) | (positions > atoms[-1])) * following
    each = -(goal * logits.log_softmax(-1)).sum(-1)
    errors = (each.detach() - entropy).clamp(min=0)  # rounding
    return Losses(each, errors, {"outside_support": outside.sum(-1).mean()})


def quantile_losses(
    support: Quantiles, quantiles: Tensor, following: Tensor, batch: Transitions, kappa: float
) -> Losses:
    """Quantile Huber loss [B] of the predicted quantiles [B, K] for the target's, moved. Priorities
    are its mean over the quantiles, which is independent of their number."""
    targets = support.moved(following, batch.returns, batch.discount)
    each = quantile_huber_loss(quantiles, targets, kappa)
    return Losses(each, each.detach() / support.size, {})


def _of(outputs: Tensor, actions: Tensor) -> Tensor:
    """[B, K]: the actions' own of [B, A, K]."""
    index = actions.view(-1, 1, 1).expand(-1, 1, outputs.shape[-1])
    return outputs.gather(1, index).squeeze(1)

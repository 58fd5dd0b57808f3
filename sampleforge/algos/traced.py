"""The loss on a minibatch of whole rows (V-trace), with its gradient by hand.

`AppoLoss.__call__` is the same loss by autograd, and the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sampleforge.algos.config import AppoLossConfig
from sampleforge.algos.experience import Experience
from sampleforge.algos.loss_columns import LossColumns, coefficients_of, metrics_of
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.mlp_passes import ActorCriticPasses
from sampleforge.ops.policy_terms import PolicyTerms, action_columns
from sampleforge.ops.ppo_gradient import PpoColumns, ppo_gradient
from sampleforge.ops.running_stats import scalar_moments
from sampleforge.ops.surrogate import normalise
from sampleforge.spec import ACTION_MASK

Targets = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Value targets and advantages, both [T, B], of values [T+1, B] and log-ratios [T, B]."""


@torch.no_grad()
def traced_gradient(
    model: ActorCritic,
    passes: ActorCriticPasses,
    experience: Experience,
    targets_of: Targets,
    config: AppoLossConfig,
    least_std: float,
) -> tuple[dict[str, Tensor], Tensor]:
    """Set the gradients of the model's parameters to those of `AppoLoss` on ``experience``; return
    its metrics, and the number or weight of the valid rows, float64 []. For a single learner, and
    models without a recurrent core. Does not wait for the device."""
    shape = experience.reward.shape
    steps, layout = experience.reward.numel(), model.layout
    obs = {name: leaf.flatten(0, 1) for name, leaf in experience.obs.items()}
    parameters, values = passes.forward(passes.inputs(obs))
    allowed = obs.get(ACTION_MASK)
    actions = action_columns(
        layout,
        {name: leaf.flatten(0, 1) for name, leaf in experience.actions.items()},
        None if allowed is None else allowed[:steps].flatten(1).bool(),
        squash=model.squash,
    )
    terms = PolicyTerms(layout, parameters[:steps], actions, squash=model.squash)
    mask = experience.mask.flatten()
    log_ratio = torch.where(mask, terms.log_prob - experience.log_prob.flatten(), 0.0)
    targets, advantages = targets_of(
        (values * model.value_scale).view(shape[0] + 1, shape[1]), log_ratio.view(shape)
    )
    columns, rows = _columns(model, experience, targets, advantages, config, least_std)
    found = ppo_gradient(
        terms,
        values[:steps],
        (model.value_scale > 0).to(values.dtype),
        PpoColumns(actions, *columns.for_gradient(config)),
        coefficients_of(config),
        explores=bool(config.exploration_coeff),
    )
    passes.backward(found.by_parameters, found.by_values)
    scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
    names, sums = columns.sums(config, found.terms, scale, experience.counts)
    metrics = metrics_of(names, sums / torch.where(rows > 0, rows, 1.0), config)
    metrics["ratio_deviation"] = (log_ratio.exp() - 1.0).abs_().max()
    return metrics, rows


def _columns(
    model: ActorCritic,
    experience: Experience,
    targets: Tensor,
    advantages: Tensor,
    config: AppoLossConfig,
    least_std: float,
) -> tuple[LossColumns, Tensor]:
    """Return the columns of the loss, [T * B], and the number or weight of the valid rows."""
    mask, counts = experience.mask, experience.counts
    scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
    advantages = advantages / scale
    moments = scalar_moments(advantages, counts)
    if config.normalise_advantages:
        advantages = normalise(advantages, moments, counts, least_std=least_std)
    rows = moments.count
    columns = (
        mask,
        (counts / torch.where(rows > 0, rows, 1.0)).to(advantages.dtype),
        experience.log_prob,
        torch.where(mask, advantages, 0.0),
        torch.where(mask, experience.value / scale, 0.0),
        torch.where(mask, targets / scale, 0.0),
    )
    return LossColumns(*(column.flatten() for column in columns)), rows

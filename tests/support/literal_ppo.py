"""PPO's loss as the papers write it, for autograd to differentiate, and the gradients of a loss."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from sampleforge.algorithms.experience import Experience, Minibatches
from sampleforge.algorithms.learning import Tensors
from sampleforge.algorithms.losses import Loss
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.algorithms.ppo.loss import PpoLoss
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.ops.masked import value_moments
from sampleforge.ops.returns import vtrace
from sampleforge.ops.running_stats import Gather, alone, over_ranks, scalar_moments


def literal_terms(
    log_ratio: Tensor,
    advantage: Tensor,
    values: tuple[Tensor, Tensor, Tensor],
    exploration: Tensor,
    config: PpoLossConfig,
) -> dict[str, Tensor]:
    """The terms of each step, and their sum ``loss``. ``values``: now, at sampling, and their
    targets; ``exploration``: minus the entropy, or the symmetric KL."""
    value, old, target = values
    ratio, e = log_ratio.exp(), config.clip_ratio
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 / (1 + e), 1 + e) * advantage)
    error = (value - target) ** 2
    if config.value_clip is not None:
        near = old + (value - old).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, (near - target) ** 2)
    kl = ratio - 1 - log_ratio
    terms = {"policy_loss": -gain, "value_loss": error, "approx_kl": kl}
    bonus = (config.exploration_coeff or 0.0) * exploration
    loss = -gain + config.value_coeff * error + bonus + config.kl_coeff * kl
    return {**terms, "loss": loss}


class LiteralLoss(PpoLoss):
    """`PpoLoss` of a minibatch, by autograd of `literal_terms`."""

    of_minibatches = Loss.of_minibatches  # type: ignore[assignment]
    kls: ClassVar[list[Tensor]] = []
    """The estimated KL of each minibatch of all of these losses."""

    def __call__(
        self, model: ActorCritic, experience: Experience, gather: Gather = alone
    ) -> tuple[Tensor, Tensors]:
        config, mask = self._config, experience.mask
        rollout = experience.reward.shape[0]
        output = model(experience.obs, experience.state, experience.is_first)
        policy = model.distribution(
            output.parameters[:rollout], {n: leaf[:rollout] for n, leaf in experience.obs.items()}
        )
        log_ratio = policy.log_prob(experience.actions) - experience.log_prob
        log_ratio = torch.where(mask, log_ratio, 0.0)
        targets, advantages = experience.targets, experience.advantages
        if targets is None or advantages is None:
            values = output.values.detach()
            found = vtrace(
                log_ratio.detach(),
                experience.reward,
                values[:-1],
                experience.next_values(values),
                experience.terminated,
                experience.trace_cut,
                self._gamma,
                config.gae_lambda,
                config.vtrace_rho,
                config.vtrace_c,
            )
            targets, advantages = found.targets, found.advantages
        scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
        advantages = advantages / scale
        own = scalar_moments(advantages, experience.counts)
        whole = over_ranks(own, gather)
        if config.normalise_advantages:
            std = whole.var.sqrt().clamp(min=self._least_std) + 1e-8
            advantages = ((advantages - whole.mean) / std).float()
        entropy, exploration = policy.entropy(), -policy.entropy()
        if config.exploration == "symmetric_kl":
            exploration = policy.symmetric_kl_to_uniform()
        values = output.values[:rollout]
        columns = [
            torch.where(mask, x, 0.0)
            for x in (advantages, values / scale, experience.value / scale, targets / scale)
        ]
        terms = literal_terms(log_ratio, columns[0], tuple(columns[1:]), exploration, config)  # type: ignore[arg-type]
        weight = experience.counts / torch.where(own.count > 0, own.count, 1.0)

        def mean(x: Tensor) -> Tensor:
            return (torch.where(mask, x, 0.0) * weight).sum().float()

        limit = 1 + config.clip_ratio
        moments = value_moments(experience.value, targets, experience.counts)
        self.kls.append(mean(terms["approx_kl"]).detach())
        metrics = {
            **{name: mean(x) for name, x in terms.items()},
            "entropy": mean(entropy),
            "clip_fraction": mean((log_ratio.exp() > limit) | (log_ratio.exp() < 1 / limit)),
            "value_mean": mean(values),
            "target_mean": moments["target_first"],
            "ratio_deviation": (log_ratio.exp() - 1).abs().max(),
            **moments,
        }
        return metrics.pop("loss"), metrics


def gradients_of(
    loss: PpoLoss, model: ActorCritic, experience: Experience
) -> tuple[Tensor, dict[str, Tensor], float]:
    """The gradient of all parameters, flat, the metrics, and the rows that count, of a batch as a
    single minibatch; ``experience`` is that of `PpoLoss.prepare`."""
    model.zero_grad()
    whole: list[Any] = [None]
    minibatches = Minibatches(whole, experience, whole_rows=True)
    losses = loss.of_minibatches(model, experience, minibatches, None, "fp32")
    losses.differentiate(0)
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts), losses.metrics(), float(losses.rows[0])


def parts_of(experience: Experience, drawn: Any, *, whole_rows: bool) -> list[Experience]:
    """The minibatches that `minibatch_positions` has drawn."""
    minibatches = Minibatches(list(drawn), experience, whole_rows=whole_rows)
    return [minibatches.part(number, experience) for number in range(len(minibatches))]

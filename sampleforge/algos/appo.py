"""The loss of asynchronous PPO (Petrenko et al. 2020, arXiv 2006.11751)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from sampleforge.algos.config import AppoLossConfig
from sampleforge.algos.experience import Experience
from sampleforge.algos.hyperparameters import APPO_LOSS_HYPERPARAMETERS, changed, values
from sampleforge.algos.stepwise import Minibatches, Network, StepwiseLoss
from sampleforge.algos.traced import traced_gradient
from sampleforge.models.actor_critic import ActorCritic, ModelOutput
from sampleforge.models.mlp_passes import ActorCriticPasses
from sampleforge.ops.explained_variance import value_moments
from sampleforge.ops.returns import gae, vtrace
from sampleforge.ops.running_stats import Gather, alone, over_ranks, scalar_moments
from sampleforge.ops.schedules import linear
from sampleforge.ops.surrogate import (
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    masked_mean,
    normalise,
    valid_total,
)


@dataclass(frozen=True)
class LossOutput:
    """The loss of a minibatch: a scalar to differentiate, and scalars to report (detached, on the
    device).

    If several ranks share a minibatch, ``loss`` and ``metrics`` are means over this rank's rows
    alone. ``weight`` (0 to 1) is this rank's fraction of the valid rows of all ranks, by count or
    by weight; ``rows`` is their total over all ranks, 0 if there is nothing to learn from.
    """

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]
    weight: torch.Tensor
    rows: torch.Tensor


class AppoLoss:
    """The loss: clipped surrogate on the ratio to the behaviour policy, clipped value loss,
    exploration bonus.

    Values, targets and advantages are divided by the model's ``value_scale``. If that scale follows
    the returns, the loss is independent of the rewards' unit.

    With V-trace, advantages and value targets are recomputed for every minibatch from the newest
    values and ratios; with GAE, `prepare` computes them once per batch from the values at sampling.
    """

    def __init__(
        self, config: AppoLossConfig, gamma: float, *, normalises_returns: bool = False
    ) -> None:
        names = (field.name for field in fields(AppoLossConfig))
        self._config = AppoLossConfig(**{name: getattr(config, name) for name in names})
        self._exploration_coeff = config.exploration_coeff
        self._gamma = gamma
        # In units of the returns' standard deviation, which is unknown without normalisation.
        self._least_std = config.advantage_floor if normalises_returns else 0.0

    def hyperparameters(self) -> dict[str, Any]:
        """Return the values that `change` can change, by name."""
        found = values(self._config, APPO_LOSS_HYPERPARAMETERS)
        return {**found, "exploration_coeff": self._exploration_coeff}

    def change(self, new: Mapping[str, Any]) -> None:
        """Set the new values of the loss's hyperparameters; ignore all others."""
        self._config = changed(self._config, APPO_LOSS_HYPERPARAMETERS, new)
        self._exploration_coeff = new.get("exploration_coeff", self._exploration_coeff)
        self._gamma = new.get("gamma", self._gamma)

    @property
    def is_scheduled(self) -> bool:
        """Whether the loss depends on the progress of the training."""
        return self._config.exploration_schedule == "linear"

    def follow(self, progress: float) -> None:
        """Set what is scheduled for the next update, at ``progress`` (0 to 1) of the training."""
        assert self._exploration_coeff is not None
        coefficient = linear(self._exploration_coeff, progress)
        self._config = replace(self._config, exploration_coeff=coefficient)

    @property
    def looks_along_time(self) -> bool:
        """Whether minibatches must hold whole rows even for a model without a recurrent core."""
        return self._config.advantage == "vtrace"

    @torch.no_grad()
    def prepare(self, model: ActorCritic, experience: Experience) -> Experience:
        """Return the experience with the columns that are computed once per batch (GAE: advantages
        and targets), without those that only this computation needs."""
        if self._config.advantage == "vtrace":
            return experience
        last_values = _last_values(model, experience)
        values = torch.cat([experience.value, last_values.unsqueeze(0)])
        advantages = gae(
            experience.reward,
            experience.value,
            experience.next_values(values),
            experience.terminated,
            experience.trace_cut,
            self._gamma,
            self._config.gae_lambda,
        )
        rollout = experience.reward.shape[0]
        return replace(
            experience,
            obs={name: leaf[:rollout] for name, leaf in experience.obs.items()},
            is_first=experience.is_first[:rollout],
            advantages=advantages,
            targets=advantages + experience.value,
        )

    def __call__(
        self, model: ActorCritic, experience: Experience, gather: Gather = alone
    ) -> LossOutput:
        """Return the loss of a minibatch, or of this rank's part of one. ``gather`` collects the
        moments of the advantages of all ranks' parts, by which they are normalised."""
        config, counts = self._config, experience.counts
        assert config.exploration_coeff is not None
        rollout = experience.reward.shape[0]
        output = model(experience.obs, experience.state, experience.is_first)
        distribution = model.distribution(
            output.parameters[:rollout], {n: leaf[:rollout] for n, leaf in experience.obs.items()}
        )
        log_ratio = distribution.log_prob(experience.actions) - experience.log_prob
        # The log-ratio of an ignored action may be of any size: it must not reach an exponential.
        log_ratio = torch.where(experience.mask, log_ratio, 0.0)
        values = output.values[:rollout]
        targets, advantages = self._targets(experience, output.values, log_ratio)
        # Until the first reward the scale is 0, and so are values, targets and advantages.
        scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
        advantages = advantages / scale
        own = scalar_moments(advantages, counts)
        whole = over_ranks(own, gather)
        if config.normalise_advantages:
            advantages = normalise(advantages, whole, counts, least_std=self._least_std)

        total = valid_total(counts)
        policy_loss = clipped_surrogate(log_ratio, advantages, config.clip_ratio, counts, total)
        value_loss = clipped_value_loss(
            values / scale,
            experience.value / scale,
            targets / scale,
            config.value_clip,
            counts,
            total,
        )
        entropy = masked_mean(distribution.entropy(), counts, total)
        if config.exploration == "entropy":
            exploration_loss = -entropy
        else:
            exploration_loss = masked_mean(distribution.symmetric_kl_to_uniform(), counts, total)
        kl = approx_kl(log_ratio, counts, total)
        loss = (
            policy_loss
            + config.value_coeff * value_loss
            + config.exploration_coeff * exploration_loss
            + config.kl_coeff * kl
        )
        with torch.no_grad():
            moments = value_moments(experience.value, targets, counts)
            metrics = {
                "loss": loss,
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "approx_kl": kl,
                "clip_fraction": clip_fraction(log_ratio, config.clip_ratio, counts, total),
                "ratio_deviation": (log_ratio.exp() - 1).abs().max(),
                "value_mean": masked_mean(values, counts, total),
                "target_mean": moments["target_first"],
                **moments,
            }
        weight = own.count / torch.where(whole.count > 0, whole.count, 1.0)
        detached = {name: m.detach() for name, m in metrics.items()}
        return LossOutput(loss, detached, weight, whole.count)

    def stepwise(
        self,
        model: ActorCritic,
        network: Network,
        experience: Experience,
        draw: Callable[[], Minibatches],
        gather: Gather,
    ) -> StepwiseLoss | None:
        """Return this loss of all minibatches that ``draw`` returns, with its gradient by hand.
        ``experience`` is that of `prepare`, with advantages and targets."""
        return StepwiseLoss(
            model, network, experience, draw(), self._config, self._least_std, gather
        )

    def by_hand(
        self, model: ActorCritic, passes: ActorCriticPasses, experience: Experience
    ) -> LossOutput | None:
        """Set the gradients of the model's parameters to those of this loss of a minibatch of whole
        rows, by hand, and return its output, detached; None if rows need not be whole. For a single
        learner."""
        if not self.looks_along_time:
            return None

        def targets_of(
            values: torch.Tensor, log_ratio: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self._targets(experience, values, log_ratio)

        metrics, rows = traced_gradient(
            model, passes, experience, targets_of, self._config, self._least_std
        )
        return LossOutput(metrics["loss"], metrics, torch.ones_like(rows), rows)

    def _targets(
        self, experience: Experience, values: torch.Tensor, log_ratio: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return value targets and advantages, both [T, B] and without gradient."""
        if experience.targets is not None and experience.advantages is not None:
            return experience.targets, experience.advantages
        values = values.detach()
        traced = vtrace(
            log_ratio.detach(),
            experience.reward,
            values[:-1],
            experience.next_values(values),
            experience.terminated,
            experience.trace_cut,
            self._gamma,
            self._config.gae_lambda,
            self._config.vtrace_rho,
            self._config.vtrace_c,
        )
        return traced.targets, traced.advantages


def _last_values(model: ActorCritic, experience: Experience) -> torch.Tensor:
    """Return the values [B] of the observation after the last step, by the newest weights."""
    if model.state_size == 0:
        last = {name: leaf[-1] for name, leaf in experience.obs.items()}
        return model.step(last, experience.state, experience.is_first[-1]).values
    output: ModelOutput = model(experience.obs, experience.state, experience.is_first)
    return output.values[-1]

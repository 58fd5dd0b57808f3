"""The columns of PPO's loss, one number per step, for its gradient by hand and for its metrics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.algos.config import AppoLossConfig
from sampleforge.ops.explained_variance import moment_columns
from sampleforge.ops.ppo_gradient import PpoCoefficients, StepTerms
from sampleforge.ops.surrogate import (
    is_clipped,
    kl_of_steps,
    surrogate_of_steps,
    value_error_of_steps,
)


class LossColumns(NamedTuple):
    """What the loss takes of each step beside the network's outputs; all of one shape [...].

    Values and targets are in units of the model's ``value_scale``. They are 0, like the advantages,
    where ``mask`` is False."""

    mask: Tensor
    """bool: the steps that count."""
    weight: Tensor
    """The share of the step in its minibatch, of all ranks; 0 where ``mask`` is False."""
    log_prob: Tensor
    """Log-probability of the action under the policy that took it."""
    advantage: Tensor
    """The advantage, normalised if the config says so."""
    value: Tensor
    """The value at sampling."""
    target: Tensor
    """The target of the value."""

    def for_gradient(self, config: AppoLossConfig) -> tuple[Tensor, ...]:
        """Return the fields of `sampleforge.ops.ppo_gradient.PpoColumns` after the actions."""
        assert config.exploration_coeff is not None
        sign = -1.0 if config.exploration == "entropy" else 1.0
        return (
            ~self.mask,
            self.log_prob,
            (self.weight * self.advantage).neg_(),
            -self.value,
            self.target - self.value,
            self.weight,
            2.0 * config.value_coeff * self.weight,
            sign * config.exploration_coeff * self.weight,
        )

    def sums(
        self, config: AppoLossConfig, terms: StepTerms, scale: Tensor, counts: Tensor
    ) -> tuple[list[str], Tensor]:
        """Return the names of the metrics that are means over the steps, and, float64 [K], the sums
        of their elements, each times its ``counts`` [...]; see `metrics_of`.

        ``terms``: those of the steps, in their shape. ``scale`` []: the unit of values and
        targets."""
        values = terms.moved + self.value
        columns = {
            "policy_loss": surrogate_of_steps(terms.log_ratio, self.advantage, config.clip_ratio),
            "value_loss": value_error_of_steps(values, self.value, self.target, config.value_clip),
            "entropy": terms.entropy,
            "approx_kl": kl_of_steps(terms.log_ratio),
            "clip_fraction": is_clipped(terms.log_ratio, config.clip_ratio),
            "value_mean": values * scale,
            **moment_columns(self.value * scale, self.target * scale),
        }
        if terms.symmetric_kl is not None:
            columns["exploration_loss"] = terms.symmetric_kl
        stacked = torch.where(self.mask, torch.stack(list(columns.values())), 0.0)
        return list(columns), stacked.flatten(1) @ counts.flatten().double()


def coefficients_of(config: AppoLossConfig) -> PpoCoefficients:
    """Return the settings of the loss for `ppo_gradient`."""
    symmetric_kl = config.exploration != "entropy"
    return PpoCoefficients(config.clip_ratio, config.value_clip, config.kl_coeff, symmetric_kl)


def metrics_of(names: list[str], means: Tensor, config: AppoLossConfig) -> dict[str, Tensor]:
    """Return the metrics of the loss, from the ``means`` [K] over the steps of what
    `LossColumns.sums` sums up."""
    metrics = dict(zip(names, means.unbind(), strict=True))
    exploration_loss = metrics.pop("exploration_loss", -metrics["entropy"])
    metrics["loss"] = (
        metrics["policy_loss"]
        + config.value_coeff * metrics["value_loss"]
        + float(config.exploration_coeff or 0.0) * exploration_loss
        + config.kl_coeff * metrics["approx_kl"]
    )
    metrics["target_mean"] = metrics["target_first"]
    return metrics

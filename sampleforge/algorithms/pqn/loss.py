"""The loss of PQN: squared errors of Q-values against lambda-returns (Gallici et al. 2024, arXiv
2407.04811, section 4 and algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.learning import Tensors, changed, values
from sampleforge.algorithms.losses import Loss
from sampleforge.algorithms.pqn.config import PqnLossConfig
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.masked import masked_mean, valid_total, value_moments
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.spec import ACTION

HYPERPARAMETERS = ("return_lambda",)


class PqnLoss(Loss):
    """The loss: half the squared difference of Q(o_t, a_t) and the lambda-return

        G_t = r_t + gamma * ((1 - lambda) * max_a Q(o_{t+1}, a) + lambda * G_{t+1}),

    which ends with an episode as TD(lambda) does. Random actions do not cut the trace (Peng's
    Q(lambda)). `prepare` computes the returns once per batch, from the values at sampling.

    The difference is divided by the model's ``value_scale``.
    """

    def __init__(self, config: PqnLossConfig, gamma: float) -> None:
        names = (field.name for field in fields(PqnLossConfig))
        self._config = PqnLossConfig(**{name: getattr(config, name) for name in names})
        self._gamma = gamma

    def hyperparameters(self) -> dict[str, Any]:
        return values(self._config, HYPERPARAMETERS)

    def change(self, new: Mapping[str, Any]) -> None:
        self._config = changed(self._config, HYPERPARAMETERS, new)
        self._gamma = new.get("gamma", self._gamma)

    @torch.no_grad()
    def prepare(self, model: QNetwork, experience: Experience) -> Experience:
        """Return the experience with the returns as ``targets``, without what only they need."""
        assert self._config.return_lambda is not None, "resolve_defaults comes first"
        # A lambda-return is the value plus the sum of discounted TD errors that GAE computes.
        returns = experience.value + experience.advantages_at_sampling(
            _last_values(model, experience), self._gamma, self._config.return_lambda
        )
        return experience.without_last_observation(targets=returns)

    def __call__(
        self, model: QNetwork, experience: Experience, gather: Gather = alone
    ) -> tuple[torch.Tensor, Tensors]:
        """Return the loss of a minibatch, or of this learner's part of one, and its metrics."""
        targets, counts = experience.targets, experience.counts
        assert targets is not None, "`prepare` comes first"
        q, _ = model.unroll(experience.obs, experience.state, experience.is_first)
        taken = q.gather(-1, experience.actions[ACTION].unsqueeze(-1)).squeeze(-1)
        # Until the first reward the scale is 0, and so are values and returns.
        scale = torch.where(model.value_scale > 0, model.value_scale, 1.0)
        errors = (targets - taken) / scale
        total = valid_total(counts)
        loss = 0.5 * masked_mean(errors.square(), counts, total)
        moments = value_moments(experience.value, targets, counts)
        return loss, {
            "td_error_mean": masked_mean(errors.abs(), counts, total),
            "q_mean": masked_mean(taken, counts, total),
            "target_mean": moments["target_first"],
            **moments,
        }


def _last_values(model: QNetwork, experience: Experience) -> torch.Tensor:
    """Return the largest Q-values [B] of the observation after the last step."""
    q, _ = model.unroll(experience.obs, experience.state, experience.is_first)
    last = {name: leaf[-1] for name, leaf in experience.obs.items()}
    return model.distribution(q[-1], last).best.values

"""Behaviour cloning and advantage-weighted imitation of recorded actions (MARWIL): loss and
learner."""

from __future__ import annotations

import math
from typing import Any

import torch

from sampleforge.algorithms.flat_parameters import Adam
from sampleforge.algorithms.learning import (
    GradientLearner,
    LearnerPlace,
    Tensors,
    Update,
    to_floats,
)
from sampleforge.algorithms.marwil.config import ImitationConfig
from sampleforge.algorithms.return_scale import spread
from sampleforge.config import ConfigError
from sampleforge.data.stored_steps import Mixture, StoredBatch
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.forward import autocast
from sampleforge.ops.masked import masked_mean, valid_total, value_moments
from sampleforge.ops.returns import advantage_weights, moving_square, weighted_imitation_loss

CHUNK = 4096
"""Observations that are counted at a time for the statistics that normalise them."""


MARWIL_HYPERPARAMETERS = (
    "learning_rate",
    "max_grad_norm",
    "advantage_exponent",
    "max_advantage_weight",
    "value_coeff",
)
"""The discount is not among them, because the returns of the data are computed once."""


def imitation_loss(
    model: ActorCritic, batch: StoredBatch, config: ImitationConfig, square: torch.Tensor
) -> tuple[torch.Tensor, Tensors, torch.Tensor]:
    """Return the loss of a batch, metrics (detached), and the moving average of squared advantages,
    float64 [], after it; ``square`` is the one before it.

    With an ``advantage_exponent`` of 0 the loss is that of behaviour cloning, -mean log pi(a|s),
    and the value function is not learned, so that it changes nothing. Otherwise it is the weighted
    one of `sampleforge.ops.returns`, plus the value function's squared error in units
    of the model's ``value_scale``."""
    mask, total = batch.mask, valid_total(batch.mask)
    state = batch.return_to_go.new_zeros(mask.shape[1], model.state_size)
    output = model(batch.obs, state, batch.is_first)
    distribution = model.distribution(output.parameters, batch.obs)
    log_prob = distribution.log_prob(batch.actions)
    metrics = {"entropy": masked_mean(distribution.entropy(), mask, total)}
    if config.advantage_exponent == 0:
        loss = policy_loss = weighted_imitation_loss(log_prob, None, mask, total)
    else:
        targets = value_targets(model, batch)
        advantages = (targets - output.values).detach()
        square = moving_square(square, advantages, mask, config.advantage_norm_decay)
        cap = config.max_advantage_weight
        weights = advantage_weights(advantages, config.advantage_exponent, square.sqrt(), cap)
        policy_loss = weighted_imitation_loss(log_prob, weights, mask, total)
        error = (output.values - targets) / model.value_scale
        value_loss = masked_mean(error.square(), mask, total)
        loss = policy_loss + config.value_coeff * value_loss
        metrics |= {
            "value_loss": value_loss,
            "value_mean": masked_mean(output.values, mask, total),
            "target_mean": masked_mean(targets, mask, total),
            "advantage_norm": square.sqrt(),
            "advantage_weight_mean": masked_mean(weights, mask, total),
            "advantage_weights_capped": masked_mean((weights >= cap).float(), mask, total),
            **value_moments(output.values, targets, mask),
        }
    metrics |= {"loss": loss, "policy_loss": policy_loss}
    detached = {name: value.detach() for name, value in metrics.items()}
    return loss, detached, square


@torch.no_grad()
def value_targets(model: ActorCritic, batch: StoredBatch) -> torch.Tensor:
    """Return the returns to go [T, B], with the value of the last observation where an episode was
    truncated. A recurrent core begins there with a state of zero."""
    targets = batch.return_to_go
    count = len(batch.final_rows)
    if count == 0:
        return targets
    is_first = torch.ones(count, dtype=torch.bool, device=targets.device)
    state = targets.new_zeros(count, model.state_size)
    final = model.step(batch.final_obs, state, is_first).values
    values = targets.new_zeros(targets.shape[1]).index_copy(0, batch.final_rows, final)
    return targets + batch.final_discount * values


class MarwilLearner(GradientLearner[ActorCritic, ImitationConfig]):
    """Learns a policy from recorded actions: model and optimiser, without a process.

    ``env_steps`` is set by the process around it. See `GradientLearner`.
    """

    def __init__(self, model: ActorCritic, config: ImitationConfig, place: LearnerPlace) -> None:
        super().__init__(model, config, MARWIL_HYPERPARAMETERS, place)
        self._optimiser = self._add_optimiser(
            "optimiser", model, lambda flat: Adam(flat, (0.9, 0.999), config.adam_eps)
        )
        self._square = torch.zeros((), dtype=torch.float64, device=place.device)

    @torch.no_grad()
    def fit_units(self, data: Mixture) -> None:
        """Set the units in which the model sees the data: the mean and standard deviation of the
        observations, and the standard deviation of the returns. They stay as they are. A frozen
        encoder keeps its statistics if it has some. Raises ConfigError if a policy head of the
        user's own has no log-probability for an action."""
        normaliser = self.model.normaliser
        if normaliser is not None:
            is_frozen = normaliser.is_frozen
            normaliser.is_frozen = is_frozen and not normaliser.is_new
            for part in data.parts:
                count = len(next(iter(part.observations.values())))
                for start in range(0, count, CHUNK):
                    chunk = {
                        name: torch.from_numpy(leaf[start : start + CHUNK]).to(self._device)
                        for name, leaf in part.observations.items()
                    }
                    normaliser.update(chunk)
            normaliser.is_frozen = is_frozen
        self._check_head(data)
        returns = torch.cat([torch.from_numpy(part.return_to_go) for part in data.parts]).double()
        size = spread(returns.mean(), returns.var(correction=0))
        self.model.rescale_values(size if size > 0 else 1.0)

    def _check_head(self, data: Mixture) -> None:
        """Raise ConfigError if the head of the user's own, which cannot have drawn the recorded
        actions, gives one of them a log-probability that is not finite."""
        head = self.model.head
        if head is None:
            return
        features = torch.zeros(1, self.model.actor.out_features, device=self._device)
        for part in data.parts:
            for start in range(0, len(part.return_to_go), CHUNK):
                actions = {
                    name: torch.from_numpy(leaf[start : start + CHUNK]).to(self._device)
                    for name, leaf in part.actions.items()
                }
                count = len(next(iter(actions.values())))
                log_prob = head.distribution(head(features.expand(count, -1)), None).log_prob(
                    actions
                )
                for row in (~log_prob.isfinite()).nonzero()[:1, 0].tolist():
                    action = {name: leaf[row].tolist() for name, leaf in actions.items()}
                    raise ConfigError(
                        f"--model.head {head.config.head}: log_prob of the recorded action "
                        f"{action} is {log_prob[row]:g}, so that it cannot be learned; let "
                        "log_prob move actions at a bound or outside a little to its inside"
                    )

    def update(self, batch: StoredBatch, progress: float) -> Update:
        """Take one gradient step on a batch.

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the
        schedules. A step whose gradient is not finite is skipped and counted."""
        self._check_frozen()
        self._follow_schedules(progress)
        batch = batch.to(self._device)
        self.model.train()
        with autocast(self._device, self._precision):
            loss, metrics, square = imitation_loss(self.model, batch, self._config, self._square)
        one = torch.ones_like(loss)  # a single learner has all rows
        metrics = self.averaging.backward(self._optimiser.flat, loss, metrics, one)
        norm = self._clip_gradient(self._optimiser)
        extra = {"grad_norm": norm, "own_trained_steps": batch.mask.sum()}
        scalars = to_floats({**metrics, **extra, "value_scale": self.model.value_scale})
        finite = math.isfinite(scalars["grad_norm"])
        if finite:
            self._square = square
        taken = self._step_unless(not finite)
        trained = int(scalars.pop("own_trained_steps"))
        return Update({**scalars, **taken, "data_passes": batch.passes}, trained)

    def _other_tensors(self) -> Tensors:
        return {"advantage_square": self._square}

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        """Restore a `state`. Raises ValueError if it is of another model."""
        super().load(tensors, plain)
        self._square = tensors["advantage_square"].to(self._device)

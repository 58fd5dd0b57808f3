"""The learner of soft actor-critic, as an object without a process: a sample in, metrics and errors
out."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn

from sampleforge.algorithms.algorithm import LearnerPlace
from sampleforge.algorithms.flat_parameters import Adam, FlatParameters, Optimiser
from sampleforge.algorithms.learning import GradientLearner, Update, to_floats
from sampleforge.algorithms.precision import autocast
from sampleforge.algorithms.sac.config import SacLossConfig
from sampleforge.algorithms.sac.loss import (
    actor_loss,
    critic_loss,
    draw,
    soft_targets,
    temperature_loss,
)
from sampleforge.algorithms.sac.passes import SacPasses, Weighting, passes_of
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.replay.importance import importance_weights
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.transitions import Transitions

SAC_HYPERPARAMETERS = ("learning_rate", "max_grad_norm", "target_rate", "target_entropy")
"""Those that can change during the training. The discount is not among them, because the n-step
returns of stored experience depend on it."""


class Temperature(nn.Module):
    """The weight of the entropy, exp(``log``)."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Return the temperature, []."""
        return self.log.exp()


class SacLearner(GradientLearner[ActorCritic, SacLossConfig]):
    """The policy (``model``), critics, target critics and the temperature, with three optimisers.

    See `GradientLearner`. The gradients of an update are all taken at the weights before it.
    The noise of the actions that are drawn for the losses follows from the place's ``noise_seed``
    and ``version``.
    """

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics,
        config: SacLossConfig,
        place: LearnerPlace,
    ) -> None:
        assert config.target_entropy is not None, "resolve_defaults comes first"
        self.critics = critics
        self.target = copy.deepcopy(critics).requires_grad_(False)
        self.temperature = Temperature(config.initial_temperature)
        super().__init__(
            model,
            config,
            SAC_HYPERPARAMETERS,
            device=place.device,
            precision=place.precision,
            averaging=place.averaging,
            others={
                "critics": critics,
                "target": self.target,
                "temperature": self.temperature,
            },
        )
        self._seed, self._share = place.noise_seed, place.share
        self._generator = torch.Generator(place.device)

        def adam(flat: FlatParameters) -> Optimiser:
            return Adam(flat, (0.9, 0.999), config.adam_eps)

        self._of_actor = self._add_optimiser("actor_optimiser", model, adam)
        self._of_critics = self._add_optimiser("critic_optimiser", critics, adam)
        self._of_temperature = self._add_optimiser("temperature_optimiser", self.temperature, adam)
        self._averaged = [chunk.data for chunk in FlatParameters(self.target.parameters()).chunks]
        by_hand = self.averaging.solo and place.precision == "fp32"
        self._passes = (
            passes_of(model, critics, self.target) if by_hand else None
        )  # once all are flat

    def update(self, batch: ReplaySample, progress: float) -> Update:
        """Learn from one sample, or from this learner's part of it.

        ``progress`` (0 to 1) is the fraction of the training that is done; it drives the linear
        schedule. A step whose gradient is not finite is skipped and counted. The errors are the
        mean absolute TD errors of the critics; there are none if items are drawn uniformly."""
        for seen in batch.seen:
            self._count_observations(seen)
        self._check_frozen()
        items = batch.items
        assert isinstance(items, Transitions), "the config refuses a recurrent core"
        acts = self.version % self._config.actor_interval == 0
        metrics, errors = self._gradients(items.to(self._device), batch.beta, acts)
        scalars = to_floats({**metrics, "temperature": self.temperature().detach()})
        finite = all(math.isfinite(scalars[n]) for n in scalars if n.endswith("grad_norm"))
        taken = self._of_critics, *((self._of_actor, self._of_temperature) if acts else ())
        scalars |= {**self._step_unless(not finite, progress, taken), "beta": batch.beta}
        if not finite:
            return Update(scalars, batch.trained)
        self._average_targets()
        if self._config.priority_exponent == 0:
            return Update(scalars, batch.trained)
        return Update(scalars, batch.trained, errors.cpu().numpy().astype(np.float32))

    def _gradients(
        self, batch: Transitions, beta: float, acts: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Compute the gradients of all losses, those of the policy and the temperature only if it
        ``acts``; return the metrics, and the errors [B] of this learner's part."""
        config = self._config
        weights, share = importance_weights(
            batch.scaled_probability, beta, batch.count, self._gather
        )
        noise = self._new_noise(len(batch.returns))
        if self._passes is not None:
            return self._by_hand(self._passes, batch, noise, weights, acts)
        targets = self._targets(batch, noise[0])
        obs = self._normalised(batch.obs)
        with autocast(self._device, self._precision):
            features = self.critics.features(obs)
            metrics: dict[str, Tensor] = {}
            if acts:
                metrics |= self._differentiate_actor(batch, features, noise[1], share)
            actions = unit_actions(self.critics.layout, batch.actions)
            values = self.critics(features, actions).float()
        loss = critic_loss(values, targets, weights if config.priority_exponent else None)
        errors = (values.detach() - targets).abs().mean(0)
        metrics |= self.averaging.backward(
            self._of_critics.flat,
            loss,
            {
                "loss": loss.detach(),
                "q_mean": values.detach().mean(),
                "td_error_mean": errors.mean(),
            },
            share,
        )
        metrics["critic_grad_norm"] = self._clip_gradient(self._of_critics)
        return metrics, errors

    @torch.no_grad()
    def _by_hand(
        self, passes: SacPasses, batch: Transitions, noise: Tensor, weights: Tensor, acts: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return what `_gradients` returns, for a learner without others."""
        config, temperature = self._config, self.temperature()
        weighting = Weighting(temperature, weights if config.priority_exponent else None)
        actions = unit_actions(self.critics.layout, batch.actions)
        metrics, errors, log_prob = passes.gradients(batch, actions, noise, weighting, acts)
        metrics["critic_grad_norm"] = self._clip_gradient(self._of_critics)
        if acts:
            assert config.target_entropy is not None and self.temperature.log.grad is not None
            slope = -temperature * (log_prob.mean() + config.target_entropy)
            self.temperature.log.grad.copy_(slope)
            metrics["grad_norm"] = self._clip_gradient(self._of_actor)
        return metrics, errors

    @torch.no_grad()
    def _targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        """Return the targets [B] of the critics."""
        obs = self._normalised(batch.next_obs)
        with autocast(self._device, self._precision):
            drawn = draw(self._parameters(batch.next_obs), noise)
            values = self.target(self.target.features(obs), drawn.actions).float()
        return soft_targets(
            batch.returns, batch.discount, values, drawn.log_prob, self.temperature()
        )

    def _differentiate_actor(
        self, batch: Transitions, features: Tensor, noise: Tensor, share: Tensor
    ) -> dict[str, Tensor]:
        """Compute the gradients of the policy and of the temperature; return the metrics."""
        drawn = draw(self._parameters(batch.obs), noise)
        values = self.critics(features.detach(), drawn.actions).float()
        temperature, entropy = self.temperature(), self._config.target_entropy
        assert entropy is not None
        of_temperature = temperature_loss(temperature, drawn.log_prob, entropy)
        self.averaging.backward(
            self._of_temperature.flat, of_temperature, {"": of_temperature.detach()}, share
        )
        loss = actor_loss(values, drawn.log_prob, temperature.detach())
        metrics = self.averaging.backward(
            self._of_actor.flat,
            loss,
            {"actor_loss": loss.detach(), "entropy": -drawn.log_prob.detach().mean()},
            share,
        )
        return {**metrics, "grad_norm": self._clip_gradient(self._of_actor)}

    def _parameters(self, obs: dict[str, Tensor]) -> Tensor:
        """Return the parameters [B, 2A] of the policy for observation leaves [B, ...]."""
        some = next(iter(obs.values()))
        state = some.new_empty(len(some), 0, dtype=torch.float32)
        parameters, _ = self.model.policy_step(obs, state, some.new_zeros(len(some)).bool())
        return parameters

    def _normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        normaliser = self.model.normaliser
        return obs if normaliser is None else dict(normaliser(obs))

    def _new_noise(self, rows: int) -> Tensor:
        """Return the noise [2, rows, A] of the targets and of the policy's loss: this learner's
        part of what one learner would draw for the whole batch."""
        self._generator.manual_seed(self._seed + self.version)
        shape = 2, self._share.learners, rows, self.critics.layout.num_boxes
        drawn = torch.empty(shape, device=self._device).normal_(generator=self._generator)
        return drawn[:, self._share.learner]

    @torch.no_grad()
    def _average_targets(self) -> None:
        """Move the target critics towards the critics."""
        data = [chunk.data for chunk in self._of_critics.flat.chunks]
        torch._foreach_lerp_(self._averaged, data, self._config.target_rate)

    def reseed(self, seed: int) -> None:
        """Seed the noise of the losses' actions anew."""
        self._seed = seed

"""The learner of soft actor-critic, as an object without a process: a sample in, metrics and errors
out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sampleforge.algorithms.algorithm import LearnerPlace
from sampleforge.algorithms.critics_learner import HYPERPARAMETERS, CriticsLearner, Drawing
from sampleforge.algorithms.flat_parameters import Optimiser
from sampleforge.algorithms.precision import autocast
from sampleforge.algorithms.sac.config import SacLossConfig
from sampleforge.algorithms.sac.loss import actor_loss, draw, soft_targets, temperature_loss
from sampleforge.algorithms.sac.passes import SacPasses
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.replay.samples import Transitions

SAC_HYPERPARAMETERS = (*HYPERPARAMETERS, "target_entropy")


class Temperature(nn.Module):
    """The weight of the entropy, exp(``log``)."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Return the temperature, []."""
        return self.log.exp()


class SacLearner(CriticsLearner[SacLossConfig]):
    """`CriticsLearner` with a temperature, which has an optimiser of its own."""

    def __init__(
        self, model: ActorCritic, critics: Critics, config: SacLossConfig, place: LearnerPlace
    ) -> None:
        assert config.target_entropy is not None, "resolve_defaults comes first"
        self.temperature = Temperature(config.initial_temperature)
        others = {"temperature": self.temperature}
        super().__init__(model, critics, config, place, SAC_HYPERPARAMETERS, others)
        self._of_temperature = self._add_optimiser(
            "temperature_optimiser", self.temperature, self._adam
        )
        self._passes = SacPasses(model, critics, self.target) if self._by_hand else None

    def _moved(self, acts: bool) -> tuple[Optimiser, ...]:
        return (*super()._moved(acts), *((self._of_temperature,) if acts else ()))

    def _gradients(self, drawing: Drawing, acts: bool) -> tuple[dict[str, Tensor], Tensor]:
        temperature = {"temperature": self.temperature().detach()}
        if self._passes is None:
            metrics, errors = super()._gradients(drawing, acts)
        else:
            metrics, errors = self._gradients_of(self._passes, drawing, acts)
        return metrics | temperature, errors

    @torch.no_grad()
    def _gradients_of(
        self, passes: SacPasses, drawing: Drawing, acts: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return what `_gradients` returns, for a learner without others."""
        temperature = self.temperature()
        actions = unit_actions(self.critics.layout, drawing.batch.actions)
        metrics, errors, log_prob = passes.gradients(drawing, actions, temperature, acts)
        metrics["critic_grad_norm"] = self._clip_gradient(self._of_critics)
        if acts:
            assert self.temperature.log.grad is not None
            slope = -temperature * (log_prob.mean() + self._target_entropy)
            self.temperature.log.grad.copy_(slope)
            metrics["grad_norm"] = self._clip_gradient(self._of_actor)
        return metrics, errors

    @property
    def _target_entropy(self) -> float:
        assert self._config.target_entropy is not None
        return self._config.target_entropy

    @torch.no_grad()
    def _targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            drawn = draw(self._parameters(self.model, batch.next_obs), noise)
            features = self.target.features(self._normalised(batch.next_obs))
            values = self.target(features, drawn.actions).float()
        return soft_targets(
            batch.returns, batch.discount, values, drawn.log_prob, self.temperature()
        )

    def _differentiate_actor(self, drawing: Drawing, features: Tensor) -> dict[str, Tensor]:
        drawn = draw(self._parameters(self.model, drawing.batch.obs), drawing.noise[1])
        values = self.critics(features.detach(), drawn.actions).float()
        temperature = self.temperature()
        heat = temperature_loss(temperature, drawn.log_prob, self._target_entropy)
        self.averaging.backward(self._of_temperature.flat, heat, {"": heat.detach()}, drawing.share)
        loss = actor_loss(values, drawn.log_prob, temperature.detach())
        found = {"actor_loss": loss.detach(), "entropy": -drawn.log_prob.detach().mean()}
        return self.averaging.backward(self._of_actor.flat, loss, found, drawing.share)

"""The losses of soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), their gradients by
hand, and the learner, as an object without a process: a sample in, metrics and errors out.

Actions are in units of their bounds, -1 to 1, and so are their densities.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.algorithms.critics_learner import (
    TARGET_HYPERPARAMETERS,
    CriticsLearner,
    Drawing,
)
from sampleforge.algorithms.critics_passes import AllCriticsPasses, PolicyPasses
from sampleforge.algorithms.flat_parameters import Optimiser
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.sac.config import SoftConfig
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import VectorInputs
from sampleforge.ops.distributions import MAX_LOG_STD, MIN_LOG_STD
from sampleforge.replay.samples import Transitions

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


class Drawn(NamedTuple):
    """Actions drawn from a policy, differentiable by its parameters."""

    actions: Tensor
    """float32 [B, A], between -1 and 1."""
    log_prob: Tensor
    """float32 [B], the log density of each."""


def draw(parameters: Tensor, noise: Tensor) -> Drawn:
    """Return tanh(mean + std * noise) and its log density.

    ``parameters`` [B, 2A] are the means and the log standard deviations, ``noise`` [B, A] standard
    normal numbers (section 5 and appendix C of the paper)."""
    mean, log_std = parameters.chunk(2, -1)
    log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_density = -0.5 * noise.square() - log_std - _LOG_ROOT_TAU
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))  # log(1 - tanh(u) ** 2)
    return Drawn(u.tanh(), (log_density - log_slope).sum(-1))


def soft_targets(
    returns: Tensor, discount: Tensor, values: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return the targets [B], for actions a' drawn from the policy (eq. 3 and 6):
    returns + discount * (min_i Q_i(s', a') - temperature * log pi(a'|s')).

    ``values`` [N, B]: of the target critics at s', a'. With windows of several steps, the entropies
    between s and s' are left out, as is usual."""
    return returns + discount * (values.amin(0) - temperature * log_prob)


def actor_loss(values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean of temperature * log pi(a|s) - min_i Q_i(s, a) (eq. 9), []; ``values``
    [N, B], of actions a that are drawn from the policy."""
    return (temperature * log_prob - values.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return the mean of -log temperature * (log pi(a|s) + target entropy), [], whose gradient is
    by the temperature alone.

    Equation 18 of the paper has the temperature where this has its logarithm, as Stable-Baselines3
    has. The sign of the gradient is the same. But that of the equation becomes smaller as the
    temperature does, and Adam takes smaller steps then (benchmarks/results/sac.md)."""
    return -log_temperature * (log_prob.detach() + target_entropy).mean()


class SacPasses:
    """The passes of a learner's networks, of which there `has_passes`."""

    def __init__(self, model: ActorCritic, critics: Critics, target: Critics) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._policy = PolicyPasses(model)
        self._make_critics(critics, target)

    def _make_critics(self, critics: Critics, target: Critics) -> None:
        self._critics = AllCriticsPasses.of(critics)
        self._target = AllCriticsPasses.of(target)

    @torch.no_grad()
    def gradients(
        self, drawing: Drawing, actions: Tensor, alpha: Tensor, acts: bool
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Set the gradients of the critics, and if the update ``acts`` those of the policy; return
        the metrics, the errors [B] and the log-probabilities [B] of the actions that were drawn at
        the observations (empty, if it does not act).

        ``actions`` [B, A]: those taken, in units of their bounds; ``alpha`` []: the temperature."""
        batch, noise = drawing.batch, drawing.noise
        now, later = self._inputs(batch.obs), self._inputs(batch.next_obs)
        drawn = draw(self._policy.forward(later), noise[0])
        metrics, errors = self._fit(drawing, (now, actions), (later, drawn), alpha)
        if not acts:
            return metrics, errors, errors[:0]
        parameters = self._policy.forward(now)
        drawn = draw(parameters, noise[1])
        least, by_actions = _of_actions(self._for_policy(), now, drawn.actions)
        self._policy.backward(self._by_parameters(parameters, noise[1], drawn, by_actions, alpha))
        metrics["actor_loss"] = (alpha * drawn.log_prob - least).mean()
        metrics["entropy"] = -drawn.log_prob.mean()
        return metrics, errors, drawn.log_prob

    def _fit(
        self,
        drawing: Drawing,
        now: tuple[Tensor, Tensor],
        later: tuple[Tensor, Drawn],
        alpha: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of the critics, given the features and actions of both ends of the
        transitions; return metrics and the errors [B]."""
        batch, (after, drawn) = drawing.batch, later
        values = self._target.forward(after, drawn.actions)
        targets = soft_targets(batch.returns, batch.discount, values, drawn.log_prob, alpha)
        return self._critics.fit(*now, targets, drawing.weights)

    def _for_policy(self) -> AllCriticsPasses:
        """Return the critics by which the policy learns."""
        return self._critics

    def _by_parameters(
        self, parameters: Tensor, noise: Tensor, drawn: Drawn, by_actions: Tensor, alpha: Tensor
    ) -> Tensor:
        """Return the gradient of the policy's loss by its parameters [B, 2A]; ``by_actions``: its
        gradient by the drawn actions, through the critics."""
        rows, log_std = len(parameters), parameters.chunk(2, -1)[1]
        inside = (log_std >= MIN_LOG_STD) & (log_std <= MAX_LOG_STD)
        a = drawn.actions
        # d log pi / du = 2 tanh u, and da / du = 1 - tanh(u) ** 2
        by_u = by_actions * (1 - a * a) + (2.0 / rows * alpha) * a
        std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD).exp()
        by_log_std = (by_u * std * noise - alpha / rows) * inside
        return torch.cat((by_u, by_log_std), 1)


def _of_actions(critics: AllCriticsPasses, now: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest values [B] of drawn actions [B, A], and the gradient of minus their mean
    by the actions."""
    values = critics.forward(now, actions)
    least = values.amin(0)
    which = (values == least).float()
    by_values = which / (-len(actions) * which.sum(0))  # as torch has it where two are equal
    by_actions = torch.zeros_like(actions)
    for critic, by_own in zip(critics.each, by_values, strict=True):
        critic.add_input_gradient(by_own, by_actions)
    return least, by_actions


SAC_HYPERPARAMETERS = (*TARGET_HYPERPARAMETERS, "target_entropy")


class Temperature(nn.Module):
    """The weight of the entropy, exp(``log``)."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Return the temperature, []."""
        return self.log.exp()


class SacLearner(CriticsLearner[SoftConfig]):
    """`CriticsLearner` with a temperature, which has an optimiser of its own."""

    def __init__(
        self,
        model: ActorCritic,
        critics: Critics,
        config: SoftConfig,
        place: LearnerPlace,
        changeable: tuple[str, ...] = SAC_HYPERPARAMETERS,
    ) -> None:
        assert config.target_entropy is not None, "resolve_defaults comes first"
        self.temperature = Temperature(config.initial_temperature)
        others = {"temperature": self.temperature}
        super().__init__(model, critics, config, place, changeable, others)
        self._of_temperature = self._add_optimiser(
            "temperature_optimiser", self.temperature, self._adam
        )
        self._passes = self._new_passes() if self._by_hand else None

    def _new_passes(self) -> SacPasses:
        return SacPasses(self.model, self.critics, self.target)

    def _moved(self, acts: bool) -> tuple[Optimiser, ...]:
        learned = acts and self._config.learn_temperature
        return (*super()._moved(acts), *((self._of_temperature,) if learned else ()))

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
            if self._config.learn_temperature:
                assert self.temperature.log.grad is not None
                self.temperature.log.grad.copy_(-(log_prob.mean() + self._target_entropy))
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
        if self._config.learn_temperature:
            heat = temperature_loss(self.temperature.log, drawn.log_prob, self._target_entropy)
            flat = self._of_temperature.flat
            self.averaging.backward(flat, heat, {"": heat.detach()}, drawing.share)
        loss = actor_loss(values, drawn.log_prob, temperature.detach())
        found = {"actor_loss": loss.detach(), "entropy": -drawn.log_prob.detach().mean()}
        return self.averaging.backward(self._of_actor.flat, loss, found, drawing.share)

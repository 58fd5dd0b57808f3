"""The gradients of soft actor-critic by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import Drawing
from sampleforge.algorithms.critics_passes import CriticsPasses, PolicyPasses
from sampleforge.algorithms.sac.loss import Drawn, draw, soft_targets
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics
from sampleforge.models.mlp_passes import VectorInputs
from sampleforge.ops.gaussian import MAX_LOG_STD, MIN_LOG_STD


class SacPasses:
    """The passes of a learner's networks, of which there `has_passes`."""

    def __init__(self, model: ActorCritic, critics: Critics, target: Critics) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._policy = PolicyPasses(model)
        self._critics, self._target = CriticsPasses(critics), CriticsPasses(target)

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
        values = self._target.forward(later, drawn.actions)
        targets = soft_targets(batch.returns, batch.discount, values, drawn.log_prob, alpha)
        metrics, errors = self._critics.fit(now, actions, targets, drawing.weights)
        if not acts:
            return metrics, errors, targets[:0]
        parameters = self._policy.forward(now)
        drawn = draw(parameters, noise[1])
        least, by_actions = self._of_actions(now, drawn.actions)
        self._policy.backward(self._by_parameters(parameters, noise[1], drawn, by_actions, alpha))
        metrics["actor_loss"] = (alpha * drawn.log_prob - least).mean()
        metrics["entropy"] = -drawn.log_prob.mean()
        return metrics, errors, drawn.log_prob

    def _of_actions(self, now: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest values [B] of drawn actions [B, A], and the gradient of minus their
        mean by the actions."""
        values = self._critics.forward(now, actions)
        least = values.amin(0)
        which = (values == least).float()
        by_values = which / (-len(actions) * which.sum(0))  # as torch has it where two are equal
        by_actions = torch.zeros_like(actions)
        for critic, by_own in zip(self._critics.each, by_values, strict=True):
            critic.add_input_gradient(by_own, by_actions)
        return least, by_actions

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

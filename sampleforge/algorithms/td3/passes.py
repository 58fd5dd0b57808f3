"""The gradients of TD3 by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import Drawing
from sampleforge.algorithms.critics_passes import CriticsPasses, PolicyPasses
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics
from sampleforge.models.mlp_passes import VectorInputs


class Td3Passes:
    """The passes of a learner's networks, of which there `has_passes`; ``targets``: those of policy
    and critics."""

    def __init__(
        self, model: ActorCritic, critics: Critics, targets: tuple[ActorCritic, Critics]
    ) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._policy, self._target_policy = PolicyPasses(model), PolicyPasses(targets[0])
        self._critics, self._target = CriticsPasses(critics), CriticsPasses(targets[1])

    @torch.no_grad()
    def gradients(
        self, drawing: Drawing, actions: Tensor, noise: Tensor, acts: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Set the gradients of the critics, and if the update ``acts`` those of the policy; return
        the metrics and the errors [B].

        ``actions`` [B, A]: those taken, in units of their bounds; ``noise`` [B, A]: that of the
        targets' actions."""
        batch = drawing.batch
        now, later = self._inputs(batch.obs), self._inputs(batch.next_obs)
        after = (self._target_policy.forward(later).tanh() + noise).clamp(-1.0, 1.0)
        values = self._target.forward(later, after)
        targets = batch.returns + batch.discount * values.amin(0)
        metrics, errors = self._critics.fit(now, actions, targets, drawing.weights)
        if acts:
            metrics["actor_loss"] = self._of_policy(now)
        return metrics, errors

    def _of_policy(self, now: Tensor) -> Tensor:
        """Set the gradients of the policy; return its loss, minus the mean value of its actions by
        the first critic."""
        actions, first = self._policy.forward(now).tanh(), self._critics.each[0]
        values = first.forward(torch.cat((now, actions), 1))
        by_actions = torch.zeros_like(actions)
        first.add_input_gradient(torch.full_like(values, -1.0 / len(values)), by_actions)
        self._policy.backward(by_actions * (1.0 - actions * actions))
        return -values.mean()

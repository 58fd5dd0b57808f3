"""The learner of TD3, as an object without a process: a sample in, metrics and errors out; and its
gradients by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from sampleforge.algorithms.critics_learner import (
    TARGET_HYPERPARAMETERS,
    CriticsLearner,
    Drawing,
    flat_data,
)
from sampleforge.algorithms.critics_passes import AllCriticsPasses, PolicyPasses
from sampleforge.algorithms.learning import LearnerPlace, Tensors
from sampleforge.algorithms.td3.config import Td3LossConfig
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.critics import Critics, unit_actions
from sampleforge.models.forward import autocast
from sampleforge.models.passes_by_hand import VectorInputs
from sampleforge.replay.samples import Transitions


class Td3Passes:
    """The passes of a learner's networks, of which there `has_passes`; ``targets``: those of policy
    and critics."""

    def __init__(
        self, model: ActorCritic, critics: Critics, targets: tuple[ActorCritic, Critics]
    ) -> None:
        self._inputs = VectorInputs(model.normaliser, model.actor)
        self._policy, self._target_policy = PolicyPasses(model), PolicyPasses(targets[0])
        self._critics = AllCriticsPasses.of(critics)
        self._target = AllCriticsPasses.of(targets[1])

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


TD3_HYPERPARAMETERS = (*TARGET_HYPERPARAMETERS, "target_noise", "target_noise_clip")


@torch.no_grad()
def set_noise(network: ActorCritic, config: Td3LossConfig) -> None:
    """Give the stochastic actions of a policy (in evaluations: those that explore have noise of
    their own) the noise of the middle row. It is not learned, and that of other weights is not
    taken over."""
    assert network.log_std is not None
    network.log_std.fill_(math.log(max(config.exploration_noise, 1e-4)))


class Td3Learner(CriticsLearner[Td3LossConfig]):
    """`CriticsLearner` of a deterministic policy, with a target policy.

    Targets are returns + discount * min_i Q_i(s', a'), where a' is the target policy's action with
    clipped noise (eq. 14 of the paper); the policy ascends the value of the first critic (eq. 12);
    the target networks move when the policy does (algorithm 1)."""

    copies: tuple[str, ...] = ("target_actor",)

    def __init__(
        self, model: ActorCritic, critics: Critics, config: Td3LossConfig, place: LearnerPlace
    ) -> None:
        self.target_actor = copy.deepcopy(model).requires_grad_(False)
        others = {"target_actor": self.target_actor}
        super().__init__(model, critics, config, place, TD3_HYPERPARAMETERS, others)
        self.target_actor.normaliser = model.normaliser
        self._averaged_actor = flat_data(self.target_actor, model)
        targets = self.target_actor, self.target
        self._passes = Td3Passes(model, critics, targets) if self._by_hand else None
        set_noise(model, config)

    def load(self, tensors: Tensors, plain: dict[str, Any]) -> None:
        super().load(tensors, plain)
        set_noise(self.model, self._config)

    def _gradients(self, drawing: Drawing, acts: bool) -> tuple[dict[str, Tensor], Tensor]:
        if self._passes is None:
            return super()._gradients(drawing, acts)
        actions = unit_actions(self.critics.layout, drawing.batch.actions)
        noise = self._smoothing(drawing.noise[0])
        metrics, errors = self._passes.gradients(drawing, actions, noise, acts)
        metrics["critic_grad_norm"] = self._clip_gradient(self._of_critics)
        if acts:
            metrics["grad_norm"] = self._clip_gradient(self._of_actor)
        return metrics, errors

    def _smoothing(self, noise: Tensor) -> Tensor:
        """Return the noise of the targets' actions, given standard normal numbers."""
        clip = self._config.target_noise_clip
        return (noise * self._config.target_noise).clamp(-clip, clip)

    @torch.no_grad()
    def _targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            actions = self._actions(self.target_actor, batch)
            actions = actions + self._smoothing(noise)
            features = self.target.features(self._normalised(batch.next_obs))
            values = self.target(features, actions.clamp(-1.0, 1.0)).float()
        targets: Tensor = batch.returns + batch.discount * values.amin(0)
        return targets

    def _differentiate_actor(self, drawing: Drawing, features: Tensor) -> dict[str, Tensor]:
        mean = self._parameters(self.model, drawing.batch.obs).chunk(2, -1)[0]
        loss = -self.critics(features.detach(), mean.tanh()).float()[0].mean()
        found = {"actor_loss": loss.detach()}
        return self.averaging.backward(self._of_actor.flat, loss, found, drawing.share)

    def _actions(self, actor: ActorCritic, batch: Transitions) -> Tensor:
        """Return the actions [B, A] of a policy at the next observations, in units of their
        bounds."""
        mean: Tensor = self._parameters(actor, batch.next_obs).chunk(2, -1)[0]
        return mean.tanh()

    def _follow(self, acts: bool) -> None:
        if acts:
            super()._follow(acts)
            self._move_towards(self._averaged_actor, self._of_actor)

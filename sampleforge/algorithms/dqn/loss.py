"""Deep Q-learning as in Ape-X (Horgan et al. 2018, arXiv 1803.00933): the loss, and the n-step
windows and first priorities that actors add to a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.first_priorities import first_errors
from sampleforge.algorithms.return_scale import typical_size
from sampleforge.algorithms.windows import MakeWindows
from sampleforge.models.mlp_passes import QPasses
from sampleforge.models.q_network import GreedyActions, QNetwork
from sampleforge.ops.n_step import FinalValues, Floats
from sampleforge.ops.r2d2 import rescale, unrescale
from sampleforge.ops.running_stats import Gather, alone
from sampleforge.replay.importance import importance_weights
from sampleforge.replay.items import write_items
from sampleforge.replay.samples import Transitions
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ACTION


@dataclass(frozen=True)
class DqnOutput:
    """The loss of a batch: a scalar to differentiate; the errors [B] that become priorities
    (absolute TD errors, or losses of distributions); scalars to report. ``errors`` and ``metrics``
    are detached, on the device.

    If several learners share a batch, ``loss`` and ``metrics`` are means over this learner's part,
    and ``weight`` (float64 []) is its fraction of what the loss is a mean over.
    """

    loss: torch.Tensor
    errors: torch.Tensor
    metrics: dict[str, torch.Tensor]
    weight: torch.Tensor


class QFunction(Protocol):
    """Q-values and their greedy actions: a `QNetwork` without a core, or its `QPasses`."""

    def q_values(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor: ...

    def distribution(
        self, parameters: torch.Tensor, obs: Mapping[str, torch.Tensor]
    ) -> GreedyActions: ...


@torch.no_grad()
def q_targets(
    online: QFunction, target: QFunction, batch: Transitions, config: DqnConfig
) -> torch.Tensor:
    """Return the targets [B]: returns + discount * Q_target(next_obs, argmax_a Q(next_obs, a)).

    Q in the argmax is that of the online network (``--double``; van Hasselt et al. 2016, arXiv
    1509.06461) or of the target network. With ``--value-rescaling``:
    h(returns + discount * h^-1(...))."""
    q = target.q_values(batch.next_obs)
    chooser = online.q_values(batch.next_obs) if config.double else q
    best = online.distribution(chooser, batch.next_obs).best.actions
    next_values = q.gather(1, best.unsqueeze(1)).squeeze(1)
    if config.value_rescaling:
        return rescale(batch.returns + batch.discount * unrescale(next_values))
    return batch.returns + batch.discount * next_values


def dqn_loss(
    online: QNetwork,
    target: QNetwork,
    batch: Transitions,
    beta: float | torch.Tensor,
    config: DqnConfig,
    gather: Gather = alone,
) -> DqnOutput:
    """Return the importance-weighted mean Huber loss of the TD errors."""
    targets = q_targets(online, target, batch, config)
    q = online.q_values(batch.obs)
    q_taken = q.gather(1, batch.actions[ACTION].unsqueeze(1)).squeeze(1)
    errors = (targets - q_taken).detach().abs()
    if config.huber_delta:
        each = F.huber_loss(q_taken, targets, reduction="none", delta=config.huber_delta)
    else:
        each = 0.5 * F.mse_loss(q_taken, targets, reduction="none")
    weights, share = importance_weights(batch.scaled_probability, beta, batch.count, gather)
    loss = (weights * each).mean()
    metrics = {
        "loss": loss.detach(),
        "td_error_max": errors.max(),
        "q_mean": q_taken.detach().mean(),
        "importance_weight_mean": weights.mean(),
    }
    return DqnOutput(loss, errors, metrics, share)


@torch.no_grad()
def dqn_gradient(
    online: QPasses,
    target: QPasses,
    batch: Transitions,
    beta: float | torch.Tensor,
    config: DqnConfig,
) -> DqnOutput:
    """Set the gradients of the online network's parameters to those of `dqn_loss`, by hand, and
    return what it returns. The loss is detached. For a learner without others."""
    targets = q_targets(online, target, batch, config)
    index = batch.actions[ACTION].unsqueeze(1)
    q = online.q_values(batch.obs)
    q_taken = q.gather(1, index).squeeze(1)
    errors = q_taken - targets
    weights, share = importance_weights(batch.scaled_probability, beta, batch.count)
    delta = config.huber_delta
    slope = errors.clamp(-delta, delta) if delta else errors
    by_taken = slope * weights / len(weights)
    online.backward(torch.zeros_like(q).scatter_(1, index, by_taken.unsqueeze(1)))
    metrics = {
        "loss": torch.dot(by_taken, errors - 0.5 * slope),  # slope (error - slope / 2): Huber's
        "q_mean": q_taken.mean(),
        "importance_weight_mean": weights.mean(),
    }
    errors = errors.abs()
    return DqnOutput(metrics["loss"], errors, {**metrics, "td_error_max": errors.max()}, share)


def columns(config: DqnConfig) -> dict[str, str]:
    """Return the columns, name -> dtype, that acting records beside the actions: the values that
    `FinishRollout` makes first priorities from."""
    names = ["value", "taken"]  # max_a Q(obs[t], a) and Q(obs[t], action[t])
    if config.value_distribution != "none":  # standard deviations of their distributions
        names += ["value_std", "taken_std"]
    return dict.fromkeys(names, "float32")


@dataclass(frozen=True)
class FinishRollout:
    """Adds n-step windows and first priorities to an actor's complete rollout, from the values that
    it acted on."""

    config: DqnConfig
    weights: SharedWeights | None = None
    """The newest weights: their ``value_scale`` is needed if returns are normalised."""

    def __call__(self, slots: TrajectorySlots, slot: int) -> None:
        make = MakeWindows(self.config, slots.shape.drops_truncated)
        reward = slots.reward[slot]
        windows = make(reward, slots.terminated[slot], slots.truncated[slot], slots.valid[slot])
        rewards = make.rewards(reward)
        unit = self._unit(rewards)
        errors = first_errors(
            self.config,
            windows._replace(returns=windows.returns / unit),
            rewards / unit,
            make.gamma,
            {name: slots.extras[name][slot] for name in columns(self.config)},
            _final(slots, slot),
        )
        write_items(slots, slot, windows, errors)

    def _unit(self, rewards: Floats) -> np.float32:
        """Return the unit that returns are learned in: the learner's ``value_scale``, or, before
        the learner knows it, the typical size of these rewards."""
        if not self.config.normalise_returns:
            return np.float32(1.0)
        assert self.weights is not None
        scale = self.weights.scalar("value_scale")
        if scale > 0:
            return np.float32(scale)
        return np.float32(typical_size(torch.from_numpy(rewards)).item())


def _final(slots: TrajectorySlots, slot: int) -> FinalValues | None:
    """Return the values of a rollout's final observations if these are stored apart from ``obs``,
    otherwise None."""
    if not slots.final_obs:
        return None
    assert slots.final_value is not None
    truncated = slots.truncated[slot] & ~slots.terminated[slot] & slots.valid[slot]
    return FinalValues(truncated, slots.final_value[slot])

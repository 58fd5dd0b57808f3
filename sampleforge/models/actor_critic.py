"""The actor-critic: normaliser -> trunk (encoder, core) -> policy head and value head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoders import orthogonal_
from sampleforge.models.normaliser import make_normaliser
from sampleforge.models.parts import Parted
from sampleforge.models.policy_head import PolicyHead, make_head
from sampleforge.models.trunk import Trunk
from sampleforge.ops.distributions import ActionDistribution, ActionLayout, action_layout
from sampleforge.spec import ACTION_MASK, ActionSpec, ArraySpec


class ModelOutput(NamedTuple):
    """The output of a model for one step [B] or a rollout [T, B]."""

    parameters: Tensor
    """float32 [..., P], the parameters of the action distribution."""
    values: Tensor
    """float32 [...], in units of returns: the value head's output times ``value_scale``."""
    state: Tensor
    """float32 [B, S], the recurrent state after the last step."""


class ActorCritic(Parted):
    """One policy and its value function, or, without ``has_values``, the policy alone, whose values
    are 0.

    ``head``: the user's own policy head, if there is one. ``state_size``: S, floats of recurrent
    state per row (0 without a core). ``value_scale``: a buffer [], either 1 or the running scale of
    the returns, which the learner sets; it is 0 until the scale is known, and values are then 0 as
    well. ``normaliser``: normalises observations, or None; only its ``update`` and ``merge`` change
    its statistics. Raises ConfigError if the config does not fit the spaces.
    """

    value_scale: Tensor

    def __init__(
        self,
        config: ModelConfig,
        observations: Mapping[str, ArraySpec],
        actions: Mapping[str, ActionSpec],
        *,
        has_values: bool = True,
    ) -> None:
        super().__init__()
        self.has_values = has_values
        self.layout = action_layout(actions)
        self.squash = config.squash_actions
        _check_fit(config, self.layout, observations)
        self.normaliser = make_normaliser(observations, config)
        self.actor = Trunk(config, observations)
        self.critic = Trunk(config, observations) if config.separate_critic else None
        critic = self.actor if self.critic is None else self.critic
        self._make_heads(config, critic.out_features)
        self.register_buffer("value_scale", torch.ones(()))
        self.state_size = self.actor.state_size * (2 if config.separate_critic else 1)

    def step(self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor) -> ModelOutput:
        """Return the output of one step: leaves [B, ...], state [B, S], is_first bool [B] (the
        state is zeroed there)."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if self.critic is None:
            features, state = self.actor.step(obs, state, is_first)
            return self._output(features, features, state)
        of_actor, of_critic = state.chunk(2, -1)
        features, of_actor = self.actor.step(obs, of_actor, is_first)
        critics, of_critic = self.critic.step(obs, of_critic, is_first)
        return self._output(features, critics, torch.cat((of_actor, of_critic), -1))

    def choices(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[ActionDistribution, Tensor, Tensor]:
        """Return the distribution of the actions of one step, the values [B] and the next state
        [B, S]; arguments as in `step`."""
        output = self.step(obs, state, is_first)
        return self.distribution(output.parameters, obs), output.values, output.state

    def policy_step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the parameters [B, P] and the state [B, S] that `step` returns, without the work
        for the values: the part of the state that is a separate critic's stays as it is."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if self.critic is None:
            features, state = self.actor.step(obs, state, is_first)
            return self._parameters_of(features), state
        of_actor, of_critic = state.chunk(2, -1)
        features, of_actor = self.actor.step(obs, of_actor, is_first)
        return self._parameters_of(features), torch.cat((of_actor, of_critic), -1)

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor) -> ModelOutput:
        """Return the output of a rollout: leaves [T, B, ...], state [B, S] before step 0, is_first
        bool [T, B] (the state is zeroed before step t where is_first[t])."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if self.critic is None:
            features, state = self.actor(obs, state, is_first)
            return self._output(features, features, state)
        of_actor, of_critic = state.chunk(2, -1)
        features, of_actor = self.actor(obs, of_actor, is_first)
        critics, of_critic = self.critic(obs, of_critic, is_first)
        return self._output(features, critics, torch.cat((of_actor, of_critic), -1))

    def distribution(self, parameters: Tensor, obs: Mapping[str, Tensor]) -> ActionDistribution:
        """Return the distribution with ``parameters`` [..., P], under the action mask among the
        leaves [..., *shape], if there is one. Acting and learning must both use it, otherwise the
        ratio is not 1 on-policy."""
        mask = obs.get(ACTION_MASK)
        if mask is not None:
            mask = mask.reshape(*parameters.shape[:-1], -1).bool()
        return self.masked_distribution(parameters, mask)

    def masked_distribution(self, parameters: Tensor, mask: Tensor | None) -> ActionDistribution:
        """Return the distribution with ``parameters`` [..., P] under a ``mask``, bool [..., number
        of logits] (None: all is allowed)."""
        if self.head is not None:
            return self.head.distribution(parameters, mask)
        return ActionDistribution(self.layout, parameters, mask, self.squash)

    @property
    def has_own_distribution(self) -> bool:
        """Whether the actions' distribution is one of the user's own."""
        return self.head is not None and self.head.has_own_distribution

    @torch.no_grad()
    def rescale_values(self, scale: float | Tensor) -> None:
        """Set ``value_scale``, and rescale the value head so that every prediction stays the same
        (the output-preserving step of Pop-Art, van Hasselt et al. 2016, arXiv 1602.07714). A scale
        of 0 is unknown and changes nothing. Does not wait for the device of a tensor []."""
        old = self.value_scale
        new = torch.as_tensor(scale, dtype=old.dtype, device=old.device)
        new = torch.where(new > 0, new, old)
        ratio = torch.where(new > 0, old / new, 1.0)
        self.value_weight.mul_(ratio)
        self.value_bias.mul_(ratio)
        self.value_scale.copy_(new)

    @torch.no_grad()
    def raise_values(self, by: Tensor) -> None:
        """Add ``by`` [], in units of returns, to every prediction; nothing while ``value_scale`` is
        unknown (0). Does not wait for the device."""
        raised = torch.where(self.value_scale > 0, by / self.value_scale, 0.0)
        self.value_bias.add_(raised.to(self.value_bias.dtype))

    def _make_heads(self, config: ModelConfig, critic_features: int) -> None:
        """Create the heads' parameters, which belong to this module itself: see `_output`."""
        layout, boxes = self.layout, self.layout.num_boxes
        if config.head is not None and not self.has_values:
            raise ConfigError(
                f"--model.head {config.head}: sac, crossq and td3 compute the gradient of their "
                "squashed normal distribution themselves; leave it out, or use appo, ddppo or "
                "marwil"
            )
        self.head: PolicyHead | None = make_head(config, self.actor.out_features, layout)
        is_learned = config.action_std == "learned" and self.head is None
        outputs = layout.head_size(state_std=not is_learned)
        policy = None
        if self.head is None:
            policy = orthogonal_(nn.Linear(self.actor.out_features, outputs), gain=0.01)
        value = orthogonal_(nn.Linear(critic_features, 1), gain=1.0) if self.has_values else None
        if policy is not None:
            if boxes and not is_learned:
                nn.init.constant_(policy.bias[-boxes:], config.initial_log_std or 0.0)
            self.policy_weight, self.policy_bias = policy.weight, policy.bias
        if value is not None:
            self.value_weight, self.value_bias = nn.Parameter(value.weight[0].detach()), value.bias
        self.log_std: nn.Parameter | None = None
        if boxes and is_learned:
            self.log_std = nn.Parameter(torch.full((boxes,), config.initial_log_std or 0.0))

    def _output(self, actor: Tensor, critic: Tensor, state: Tensor) -> ModelOutput:
        """Return the output of both heads. It reads the parameters from the module's dict: at 16
        rows this takes 7 us, and two nn.Linear 12."""
        if torch.is_autocast_enabled(actor.device.type):
            with torch.autocast(actor.device.type, enabled=False):  # 8 bits are too few for a value
                return self._output(actor, critic, state)
        if not self.has_values:
            return ModelOutput(self._policy_head(actor), actor.new_zeros(actor.shape[:-1]), state)
        p: dict[str, Any] = self._parameters
        values = torch.matmul(critic, p["value_weight"]) + p["value_bias"]
        return ModelOutput(self._policy_head(actor), values * self.value_scale, state)

    def _parameters_of(self, actor: Tensor) -> Tensor:
        """Return the parameters of the action distribution, in full precision."""
        with torch.autocast(actor.device.type, enabled=False):
            return self._policy_head(actor)

    def _policy_head(self, actor: Tensor) -> Tensor:
        if self.head is not None:
            return self.head(actor).float()  # type: ignore[no-any-return]
        p: dict[str, Any] = self._parameters
        parameters = F.linear(actor, p["policy_weight"], p["policy_bias"])
        if self.log_std is not None:
            log_std = self.log_std.expand(*parameters.shape[:-1], -1)
            parameters = torch.cat((parameters, log_std), -1)
        return parameters


def _check_fit(
    config: ModelConfig, layout: ActionLayout, observations: Mapping[str, ArraySpec]
) -> None:
    if config.squash_actions and layout.num_boxes and not layout.is_bounded:
        raise ConfigError(
            f"--model.squash-actions needs finite bounds with low < high, but the Box actions have "
            f"low {layout.low} and high {layout.high}; leave it off, or bound the Box"
        )
    if ACTION_MASK in observations:
        size = math.prod(observations[ACTION_MASK].shape)
        if size != layout.num_logits:
            raise ConfigError(
                f"observation leaf {ACTION_MASK!r} has {size} elements, but the discrete actions "
                f"have {layout.num_logits} categories in total (MultiBinary: two each); it needs "
                "one element per category"
            )

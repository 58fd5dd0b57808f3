"""The Q-network: normaliser -> trunk (encoder, core) -> heads, with a Q-value or a distribution of
returns per action."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sampleforge.config import ConfigError
from sampleforge.models.actor_critic import ModelOutput
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoders import activation
from sampleforge.models.normaliser import make_normaliser
from sampleforge.models.parts import Parted
from sampleforge.models.q_heads import ValueDistribution, make_heads, output_parameters
from sampleforge.models.trunk import Trunk
from sampleforge.spec import ACTION, ACTION_MASK, KINDS, ActionSpec, ArraySpec

EVALUATION_EPSILON = 0.001
"""Epsilon of stochastic evaluation, as in published Atari scores."""


class QNetwork(Parted):
    """A network for the Q-values of one discrete action.

    ``dueling``: Q = V + A - mean_a A (Wang et al. 2016, arXiv 1511.06581, eq. 9). ``head_size``:
    width of a hidden layer in each head, 0 for none. ``noisy_sigma``: initial sigma of the heads'
    noisy layers, which use their means until `set_noise` of `sampleforge.models.q_heads` is called
    (0: plain layers). ``value_distribution``: the distribution of each action's return (None:
    Q-values alone).

    In the output, ``parameters`` are the Q-values [..., A] and ``values`` the largest that the
    action mask allows, both in units of ``value_scale``, or, with ``in_returns_unit``, in that of
    the returns, like the values of an actor-critic. The scale is a buffer [], either 1 or the
    running scale of rewards or returns, which the learner sets; it is 0 until it is known. Raises
    ConfigError if the config does not fit the spaces.
    """

    value_scale: Tensor

    def __init__(
        self,
        config: ModelConfig,
        observations: Mapping[str, ArraySpec],
        actions: Mapping[str, ActionSpec],
        *,
        dueling: bool,
        head_size: int,
        noisy_sigma: float = 0.0,
        value_distribution: ValueDistribution | None = None,
        in_returns_unit: bool = False,
    ) -> None:
        super().__init__()
        if config.head is not None:
            raise ConfigError(
                f"--model.head {config.head}: a network of Q-values has no policy head; leave it "
                "out, or use appo, ddppo or marwil"
            )
        self.num_actions = _num_actions(actions)
        _check_fit(config, observations, self.num_actions)
        self.normaliser = make_normaliser(observations, config)
        self.trunk = Trunk(config, observations)
        self.state_size = self.trunk.state_size
        self.dueling = dueling
        self._in_returns_unit = in_returns_unit
        self.value_distribution = value_distribution
        size = 1 if value_distribution is None else value_distribution.size
        widths = (self.num_actions * size, size) if dueling else (self.num_actions * size,)
        self.heads = make_heads(
            self.trunk.out_features,
            widths,
            hidden=head_size,
            act=activation(config.activation, "relu"),
            noisy_sigma=noisy_sigma,
        )
        self.register_buffer("value_scale", torch.ones(()))

    @torch.no_grad()
    def rescale_values(self, scale: float | Tensor, *, keep: bool = True) -> None:
        """Set ``value_scale``. With ``keep``, also rescale the heads so that every prediction stays
        the same in the rewards' own unit. As long as the old scale is unknown, predictions have no
        unit and the heads do not change. A scale of 0 changes nothing. Does not wait for the
        device."""
        old = self.value_scale
        new = torch.as_tensor(scale, dtype=old.dtype, device=old.device)
        new = torch.where(new > 0, new, old)
        if keep:
            ratio = torch.where(old > 0, old / new, 1.0)
            for parameter in output_parameters(self.heads):
                parameter.mul_(ratio)
        self.value_scale.copy_(new)

    def step(self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor) -> ModelOutput:
        """Return the output of one step: leaves [B, ...], state [B, S], is_first bool [B] (the
        state is zeroed there)."""
        actions, values, state = self.choices(obs, state, is_first)
        return ModelOutput(actions.q, values, state)

    def policy_step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Q-values [B, A] and the state [B, S] that `step` returns."""
        actions, state = self._greedy(obs, state, is_first)
        return actions.q, state

    def choices(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[GreedyActions, Tensor, Tensor]:
        """Return the greedy actions of one step, their values [B] and the next state [B, S];
        arguments as in `step`."""
        actions, state = self._greedy(obs, state, is_first)
        return actions, actions.best.values, state

    def _greedy(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[GreedyActions, Tensor]:
        leaves = obs if self.normaliser is None else self.normaliser(obs)
        features, state = self.trunk.step(leaves, state, is_first)
        outputs = self._outputs(features)
        actions = self.distribution(self.mean(outputs), obs)
        if self.value_distribution is not None:
            actions.std = self.value_distribution.std(outputs)
        return actions, state

    def q_values(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the Q-values float32 [B, A] of leaves [B, ...], for a network without a core."""
        return self.mean(self.outputs(obs))

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the Q-values [..., A] of `outputs`."""
        if self.value_distribution is not None:
            outputs = self.value_distribution.mean(outputs)
        return outputs * self.value_scale if self._in_returns_unit else outputs

    def outputs(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the heads' outputs for leaves [B, ...], for a network without a core: Q-values
        float32 [B, A], or [B, A, K] for the network's ``value_distribution``."""
        assert self.state_size == 0
        leaves = obs if self.normaliser is None else self.normaliser(obs)
        some = next(iter(leaves.values()))
        features, _ = self.trunk.step(
            leaves, some.new_empty(0), some.new_zeros(len(some), dtype=torch.bool)
        )
        return self._outputs(features)

    def unroll(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Q-values float32 [T, B, A] of a rollout and the state [B, S] after its last
        step, from leaves [T, B, ...], state [B, S] before obs[0], is_first bool [T, B] (the state
        is zeroed there)."""
        leaves = obs if self.normaliser is None else self.normaliser(obs)
        features, state = self.trunk(leaves, state, is_first)
        return self._q_values(features), state

    def _q_values(self, features: Tensor) -> Tensor:
        return self.mean(self._outputs(features))

    def _outputs(self, features: Tensor) -> Tensor:
        if torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):  # 8 bits are too few
                return self._outputs(features)
        outputs: Tensor = self.heads(features)
        axis = -1  # of the actions
        if self.value_distribution is not None:
            outputs = outputs.reshape(*outputs.shape[:-1], -1, self.value_distribution.size)
            axis = -2
        return _dueling(outputs, axis) if self.dueling else outputs

    def distribution(self, parameters: Tensor, obs: Mapping[str, Tensor]) -> GreedyActions:
        """Return the greedy actions for Q-values [..., A], under the action mask if ``obs`` has
        one."""
        mask = obs.get(ACTION_MASK)
        if mask is not None:
            mask = mask.reshape(parameters.shape).bool()
            # A final observation may allow no action. No action is taken there, but a truncation
            # bootstraps from it: then all actions count.
            mask = mask | ~mask.any(-1, keepdim=True)
        return GreedyActions(parameters, mask)


def _dueling(outputs: Tensor, axis: int) -> Tensor:
    """Return V + A - mean A, from advantages and, last on the axis, the value."""
    actions = outputs.shape[axis] - 1
    advantage, value = outputs.narrow(axis, 0, actions), outputs.narrow(axis, actions, 1)
    return value + advantage - advantage.mean(axis, keepdim=True)


class Best(NamedTuple):
    """The greedy actions and their Q-values."""

    values: Tensor
    """[...], the largest allowed Q-value."""
    actions: Tensor
    """int64 [...], the action with that value."""


class GreedyActions:
    """The greedy and epsilon-greedy actions for given Q-values.

    ``q`` [..., A]; ``mask`` bool of the same shape, True where an action is allowed, or None;
    ``std`` of the same shape: standard deviations of the returns, if the network has a
    ``value_distribution``.
    """

    def __init__(self, q: Tensor, mask: Tensor | None) -> None:
        self.q = q
        self.mask = mask
        self.std: Tensor | None = None

    @cached_property
    def best(self) -> Best:
        q = self.q if self.mask is None else self.q.masked_fill(~self.mask, -math.inf)
        return Best(*q.max(-1))

    def mode(self) -> dict[str, Tensor]:
        return {ACTION: self.best.actions}

    def sample(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return epsilon-greedy actions with `EVALUATION_EPSILON`."""
        return {ACTION: self.explore(self._evaluation_epsilons, generator)}

    @property
    def parameters(self) -> Tensor:
        """The log-probability of each action, float32 [..., A], when `sample` draws it."""
        return self.log_probs(self._evaluation_epsilons)

    def log_prob(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Return the log-probability [...] of actions that `sample` has drawn."""
        return self.parameters.gather(-1, actions[ACTION].unsqueeze(-1)).squeeze(-1)

    def explore(self, epsilons: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return actions int64 [...]: a uniformly random allowed one with probability ``epsilons``
        [...], else the best."""
        return torch.where(
            self._uniform(epsilons.shape, generator) < epsilons,
            self._any(generator),
            self.best.actions,
        )

    def log_probs(self, epsilons: Tensor) -> Tensor:
        """Return the log-probability of each action, float32 [..., A], when `explore` draws it."""
        allowed = torch.ones_like(self.q) if self.mask is None else self.mask.to(self.q.dtype)
        exploring = epsilons.to(self.q.dtype).unsqueeze(-1)
        probability = exploring * allowed / allowed.sum(-1, keepdim=True)
        best = self.best.actions.unsqueeze(-1)
        return probability.scatter_add(-1, best, 1.0 - exploring).log()

    @property
    def _evaluation_epsilons(self) -> Tensor:
        return torch.full(self.q.shape[:-1], EVALUATION_EPSILON, device=self.q.device)

    def _any(self, generator: torch.Generator | None) -> Tensor:
        shape, device = self.q.shape, self.q.device
        if self.mask is None:
            return torch.randint(shape[-1], shape[:-1], device=device, generator=generator)
        return self._uniform(shape, generator).masked_fill(~self.mask, -1.0).argmax(-1)

    def _uniform(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return torch.rand(shape, device=self.q.device, generator=generator)


def _num_actions(actions: Mapping[str, ActionSpec]) -> int:
    spec = actions.get(ACTION)
    if len(actions) != 1 or spec is None or spec.kind != "discrete":
        kinds = ", ".join(f"{name} ({KINDS[action.kind]})" for name, action in actions.items())
        raise ConfigError(
            f"Q-values are learned of one Discrete action, which is the whole action space, but "
            f"this environment has {kinds}; use sac for Box actions, or appo, which takes any"
        )
    return spec.categories[0]


def _check_fit(
    config: ModelConfig, observations: Mapping[str, ArraySpec], num_actions: int
) -> None:
    if config.separate_critic:
        raise ConfigError("model.separate_critic is for actor-critics; a Q-network has no critic")
    if ACTION_MASK in observations:
        size = math.prod(observations[ACTION_MASK].shape)
        if size != num_actions:
            raise ConfigError(
                f"observation leaf {ACTION_MASK!r} has {size} elements, but there are "
                f"{num_actions} actions; it needs one each"
            )

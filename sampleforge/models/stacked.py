"""Passes of several networks of one architecture together: each row of a batch has a network of its
own, as rows have that play with different snapshots of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.encoders import MLP
from sampleforge.models.normaliser import CLIP
from sampleforge.models.q_network import QNetwork


def network_of_each_row(networks: Sequence[ActorCritic | QNetwork]) -> NetworkOfEachRow:
    """Return the passes of ``networks``: small ones are stacked, others take a pass each."""
    actor_critics = [each for each in networks if isinstance(each, ActorCritic)]
    if actor_critics and all(map(is_stackable, actor_critics)):
        return StackedActors(actor_critics)
    return NetworkOfEachRow(networks)


def is_stackable(network: ActorCritic) -> bool:
    """Return whether the policy is an MLP of one vector, without LayerNorm and a core: its passes
    take no longer than their calls, so that one pass for all saves nearly all of their time."""
    encoder = network.actor.encoder
    if type(encoder) is not MLP or encoder.norms is not None or network.head is not None:
        return False
    return encoder.plain_leaf is not None and network.actor.core is None


class NetworkOfEachRow:
    """Several networks, whose policies a pass computes together: of any kind, the rows of each
    network take a pass of their own."""

    def __init__(self, networks: Sequence[ActorCritic | QNetwork]) -> None:
        self._networks = networks

    def follow(self, index: int) -> None:
        """Take over the weights of network ``index``, which have changed: the networks themselves
        are used here."""

    def policy_step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor, network: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what `ActorCritic.policy_step` or `QNetwork.policy_step` returns. ``network``
        int64 [B]: the index of each row's network."""
        order = network.argsort(stable=True)
        indices, counts = torch.unique_consecutive(network[order], return_counts=True)
        rows = counts.tolist()
        leaves = {name: torch.split(leaf[order], rows) for name, leaf in obs.items()}
        states, firsts = torch.split(state[order], rows), torch.split(is_first[order], rows)
        passes = [
            self._networks[index].policy_step(
                {name: leaf[i] for name, leaf in leaves.items()}, states[i], firsts[i]
            )
            for i, index in enumerate(indices.tolist())
        ]
        parameters, after = (torch.cat(parts) for parts in zip(*passes, strict=True))
        row_of = order.argsort()
        return parameters[row_of], after[row_of]


class StackedActors(NetworkOfEachRow):
    """The policies of actor-critics with MLP encoders, with their weights stacked along a first
    axis. A pass multiplies each row with the weights of its own network, which it gathers."""

    def __init__(self, networks: Sequence[ActorCritic]) -> None:
        self._actors = networks
        encoder = networks[0].actor.encoder
        assert isinstance(encoder, MLP)
        self._encoder = encoder
        self._stacks = [torch.stack(each) for each in zip(*map(_tensors, networks), strict=True)]
        self._is_normalised = networks[0].normaliser is not None
        self._has_log_std = networks[0].log_std is not None

    def follow(self, index: int) -> None:
        for stack, tensor in zip(self._stacks, _tensors(self._actors[index]), strict=True):
            stack[index].copy_(tensor)

    def policy_step(
        self, obs: Mapping[str, Tensor], state: Tensor, is_first: Tensor, network: Tensor
    ) -> tuple[Tensor, Tensor]:
        own = iter([stack.index_select(0, network) for stack in self._stacks])
        name = self._encoder.plain_leaf
        assert name is not None
        x = obs[name]
        if self._is_normalised:
            mean, scale = next(own), next(own)
            x = torch.sub(x.float(), mean).mul_(scale).clamp_(-CLIP, CLIP)
        x = x.unsqueeze(1)
        for _ in self._encoder.layers:
            x = self._encoder.act(torch.baddbmm(next(own), x, next(own)))
        parameters = torch.baddbmm(next(own), x, next(own)).squeeze(1)
        if self._has_log_std:
            parameters = torch.cat((parameters, next(own)), -1)
        return parameters, state


def _tensors(network: ActorCritic) -> list[Tensor]:
    """Return the tensors of a policy in the order in which a pass needs them, biases [1, out] and
    weights [in, out]."""
    encoder = network.actor.encoder
    assert isinstance(encoder, MLP) and encoder.plain_leaf is not None
    found: list[Tensor] = []
    if network.normaliser is not None:
        leaf = network.normaliser.leaf(encoder.plain_leaf)
        found += [leaf.mean, leaf.scale]
    layers = [*encoder.layers, (network.policy_weight, network.policy_bias)]
    for weight, bias in layers:
        found += [bias.detach().unsqueeze(0), weight.detach().T]
    if network.log_std is not None:
        found.append(network.log_std.detach())
    return found

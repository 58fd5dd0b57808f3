"""Several action-value functions Q(s, a) of Box actions, computed together."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.config import ConfigError
from sampleforge.models.batch_renorm import BatchRenorm
from sampleforge.models.config import ModelConfig
from sampleforge.models.encoder_registry import encoded_leaves, make_encoder, resolve_encoder
from sampleforge.models.encoders import Vector, activation
from sampleforge.models.normaliser import normalised_leaves
from sampleforge.ops.distributions import ActionLayout, action_layout, bounds_of
from sampleforge.spec import KINDS, ActionSpec, ArraySpec


class Critics(nn.Module):
    """``count`` critics, each an MLP of ``config.widths`` with one output and weights of its own.

    An MLP encoder is left out: its layers are the critics' own, which see the observations as one
    vector beside the actions. Another encoder is one that all critics share. All critics are
    computed as one batched product for each layer. With ``config.layer_norm``, each layer's outputs
    are normalised before the activation. ``renormed``: with batch renormalisation of each layer's
    inputs.
    """

    def __init__(
        self,
        config: ModelConfig,
        observations: Mapping[str, ArraySpec],
        actions: Mapping[str, ActionSpec],
        count: int,
        *,
        renormed: bool = False,
    ) -> None:
        super().__init__()
        self.count = count
        self.layout = action_layout(actions)
        self.act = activation(config.activation, "relu")
        leaves = encoded_leaves(observations)
        self.encoder: nn.Module
        if resolve_encoder(config, observations).encoder == "mlp":
            self.encoder = Vector(leaves, config)
        else:
            floats = normalised_leaves(observations, config)
            self.encoder = make_encoder(config, observations, floats)
        size = int(self.encoder.out_features) + self.layout.num_boxes  # type: ignore[arg-type]
        sizes = (*config.widths, 1)
        self.norms = None
        if config.layer_norm:
            self.norms = nn.ModuleList(_Norm(count, width) for width in sizes[:-1])
        inputs = (size, *config.widths) if renormed else ()
        self.renorms = [BatchRenorm(count, width) for width in inputs]
        for i, norm in enumerate(self.renorms):
            self.add_module(f"renorm_{i}", norm)
        self._names: list[tuple[str, str]] = []
        for i, width in enumerate(sizes):
            bound = 1.0 / math.sqrt(size)  # as nn.Linear has it
            for name, shape in ((f"weight_{i}", (width, size)), (f"bias_{i}", (1, width))):
                parameter = torch.empty(count, *shape).uniform_(-bound, bound)
                setattr(self, name, nn.Parameter(parameter))
            self._names.append((f"weight_{i}", f"bias_{i}"))
            size = width

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight [N, out, in] and bias [N, 1, out] of each layer of the ``count`` N critics."""
        return [(getattr(self, weight), getattr(self, bias)) for weight, bias in self._names]

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return what the critics see of normalised observation leaves [B, ...], [B, F]."""
        features: Tensor = self.encoder(obs)
        return features

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the values [N, B] of ``features`` [B, F] and actions [B, A] in units of their
        bounds (`unit_actions`)."""
        x = torch.cat((features, actions), -1).expand(self.count, -1, -1)
        last = len(self._names) - 1
        for i, (weight, bias) in enumerate(self.layers):
            x = self.renorms[i](x) if self.renorms else x
            x = torch.baddbmm(bias, x, weight.transpose(1, 2))
            if i < last:
                x = self.act(x if self.norms is None else self.norms[i](x))
        return x.squeeze(-1)


class _Norm(nn.Module):
    """LayerNorm of a layer of ``count`` N critics, each with a scale and a shift of its own: [N, B,
    width] -> the same."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, 1, width))
        self.bias = nn.Parameter(torch.zeros(count, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight)


def unit_actions(layout: ActionLayout, actions: Mapping[str, Tensor]) -> Tensor:
    """Return Box actions, leaf -> [B, ...], as [B, A] float32 in units of their bounds, -1 to 1."""
    some = next(iter(actions.values()))
    rows, (low, high) = len(some), bounds_of(layout, some.device)
    flat = torch.cat([actions[leaf.name].reshape(rows, -1) for leaf in layout.leaves], -1)
    return ((flat - low) * (2.0 / (high - low)) - 1.0).float()  # in float64


def check_bounded_boxes(algo: str, actions: Mapping[str, ActionSpec]) -> None:
    """Raise ConfigError unless all ``actions`` are Box actions with finite bounds."""
    for name, action in actions.items():
        if action.kind != "box":
            raise ConfigError(
                f"{algo} learns values of continuous actions, but action leaf {name!r} is "
                f"{KINDS[action.kind]}; use apex or pqn for one Discrete action, appo for any"
            )
        if not action.is_bounded_box:
            raise ConfigError(
                f"{algo} needs Box actions with finite bounds, low < high, but action leaf "
                f"{name!r} has low {action.low} and high {action.high}; bound the Box, or use appo"
            )

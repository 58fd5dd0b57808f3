"""The heads of a Q-network: from features to the outputs for each action's value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sampleforge.models.encoders import Activation, Dense, orthogonal_
from sampleforge.models.noisy import NoisyLinear


def make_heads(
    features: int, widths: Sequence[int], *, hidden: int, act: Activation, noisy_sigma: float
) -> nn.Module:
    """Return the heads, features [..., F] -> [..., sum(widths)], with their outputs side by side.

    ``hidden``: width of a hidden layer in each head (0: none). ``noisy_sigma``: initial sigma of
    noisy layers (0: plain layers)."""
    if hidden:
        return Streams(features, widths, hidden, act, noisy_sigma)
    return _layer(features, sum(widths), noisy_sigma)


def output_parameters(heads: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of heads of `make_heads` in which their outputs are linear."""
    return (heads.out if isinstance(heads, Streams) else heads).parameters()


class Streams(nn.Module):
    """Heads with a hidden layer each."""

    def __init__(
        self, features: int, widths: Sequence[int], size: int, act: Activation, noisy_sigma: float
    ) -> None:
        super().__init__()
        hidden = (
            _NoisyDense(features, size, act, noisy_sigma)
            if noisy_sigma
            else Dense(features, (size,), act)
            for _ in widths
        )
        self.hidden = nn.ModuleList(hidden)
        self.out = nn.ModuleList(_layer(size, width, noisy_sigma) for width in widths)

    def forward(self, features: Tensor) -> Tensor:
        pairs = zip(self.hidden, self.out, strict=True)
        return torch.cat([out(hidden(features)) for hidden, out in pairs], -1)


class _NoisyDense(NoisyLinear):
    """A noisy layer with an activation."""

    def __init__(self, inputs: int, outputs: int, act: Activation, sigma: float) -> None:
        super().__init__(inputs, outputs, sigma)
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        return self._act(super().forward(x))


def _layer(inputs: int, outputs: int, noisy_sigma: float) -> nn.Module:
    if noisy_sigma:
        return NoisyLinear(inputs, outputs, noisy_sigma)
    return orthogonal_(nn.Linear(inputs, outputs), gain=1.0)

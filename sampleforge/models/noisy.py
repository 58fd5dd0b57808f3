"""Noisy linear layers: noise of a learned size on the weights (Fortunato et al. 2018, NoisyNet,
arXiv 1706.10295)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Noise(NamedTuple):
    """The source of a layer's noise; the generator is on the layer's device."""

    generator: torch.Generator
    per_row: bool
    """Every row of a batch has noise of its own; if False, all rows share one draw, as in the
    paper."""

    def draw(self, shape: Sequence[int], rows: Sequence[int]) -> Tensor:
        """Return f(x) = sgn(x) sqrt(|x|) of standard normal x, in ``shape``, or [*rows, *shape] if
        ``per_row``."""
        size = (*rows, *shape) if self.per_row else tuple(shape)
        x = torch.randn(size, generator=self.generator, device=self.generator.device)
        return x.sign() * x.abs().sqrt()


class NoisyLinear(nn.Module):
    """y = (mu + sigma * eps) x + (mu_b + sigma_b * eps_b), with factorised noise (eq. 10 and 11):
    eps_ij = f(e_i) f(e_j) and eps_b,j = f(e_j) for ``inputs`` and ``outputs`` normal numbers e.

    ``weight`` and ``bias`` are the means mu. If ``noise`` is None, y is computed from the means;
    otherwise every forward pass draws new noise. mu is initialised uniformly in +-1/sqrt(inputs),
    sigma to ``sigma / sqrt(inputs)``.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.noise: Noise | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return y [..., outputs] for x [..., inputs]."""
        mean = F.linear(x, self.weight, self.bias)
        if self.noise is None:
            return mean
        outputs, inputs = self.weight.shape
        at_in = self.noise.draw((inputs,), x.shape[:-1])
        at_out = self.noise.draw((outputs,), x.shape[:-1])
        # (sigma * f(e_j) f(e_i)) x = f(e_j) (sigma (f(e_i) x)): this needs no matrix of noise, so
        # that noise for every row costs no more than its random numbers.
        return mean + at_out * F.linear(x * at_in, self.weight_sigma, self.bias_sigma)


def set_noise(model: nn.Module, noise: Noise | None) -> None:
    """Set the source of noise of all noisy layers of a model; None: they use their means."""
    for layer in noisy_layers(model):
        layer.noise = noise


def noisy_layers(model: nn.Module) -> list[NoisyLinear]:
    """Return the noisy layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, NoisyLinear)]


def noise_size(model: nn.Module) -> dict[str, Tensor]:
    """Return the metric ``noise_to_weight``: the mean of |sigma| over all weights of noisy layers,
    divided by the mean of |mu|. Empty without noisy layers."""
    layers = noisy_layers(model)
    if not layers:
        return {}
    with torch.no_grad():
        sigma = sum(layer.weight_sigma.abs().sum() for layer in layers)
        weight = sum(layer.weight.abs().sum() for layer in layers)
        return {"noise_to_weight": torch.as_tensor(sigma / weight)}

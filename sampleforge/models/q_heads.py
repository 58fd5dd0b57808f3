"""The heads of a Q-network, from features to the outputs for each action's value: plain layers or
noisy ones, whose noise is of a learned size (Fortunato et al. 2018, NoisyNet, arXiv 1706.10295);
and distributions of an action's return, represented by K numbers per action.

With ``rescaled``, the distributions are those of squashed returns h(G) (`ops.q_learning`). The
Q-value of an action is the mean of its *returns*, squashed again: h(E[h^-1(h(G))]). So the best
action is the one with the best mean return, and Q-values have the same meaning as without
distributions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sampleforge.models.config import QHeadsConfig
from sampleforge.models.encoders import Activation, Dense, orthogonal_
from sampleforge.ops.q_learning import rescale, unrescale


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


class ValueDistribution(nn.Module):
    """A distribution given by ``size`` (K) numbers per action, the last axis of ``outputs``."""

    def __init__(self, size: int, rescaled: bool) -> None:
        super().__init__()
        self.size = size
        self.rescaled = rescaled

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the Q-values [...] of outputs [..., K]."""
        raise NotImplementedError

    def std(self, outputs: Tensor) -> Tensor:
        """Return the standard deviations [...] of outputs [..., K], of squashed returns if
        rescaled."""
        raise NotImplementedError

    def moved(self, values: Tensor, returns: Tensor, discount: Tensor) -> Tensor:
        """Return returns + discount * values [B, K], for values [B, K] or [K], returns [B] and
        discount [B]; if rescaled, h(returns + discount * h^-1(values))."""
        next_values = unrescale(values) if self.rescaled else values
        targets = returns.unsqueeze(-1) + discount.unsqueeze(-1) * next_values
        return rescale(targets) if self.rescaled else targets


class Categorical(ValueDistribution):
    """C51: logits of the probabilities of ``atoms`` [K], which are evenly spaced from v_min to
    v_max, both squashed if rescaled (Bellemare et al. 2017, arXiv 1707.06887)."""

    atoms: Tensor
    returns: Tensor

    def __init__(self, size: int, v_min: float, v_max: float, rescaled: bool) -> None:
        super().__init__(size, rescaled)
        ends = torch.tensor([v_min, v_max])
        low, high = (rescale(ends) if rescaled else ends).tolist()
        atoms = torch.linspace(low, high, size)
        # Not in checkpoints: they follow from the config.
        self.register_buffer("atoms", atoms, persistent=False)
        self.register_buffer("returns", unrescale(atoms) if rescaled else atoms, persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        # Not a matmul, which autocast might take in bfloat16.
        mean = (outputs.softmax(-1) * self.returns).sum(-1)
        return rescale(mean) if self.rescaled else mean

    def std(self, outputs: Tensor) -> Tensor:
        probabilities = outputs.softmax(-1)
        mean = (probabilities * self.atoms).sum(-1, keepdim=True)
        return (probabilities * (self.atoms - mean).square()).sum(-1).sqrt()


class Quantiles(ValueDistribution):
    """QR-DQN: the quantiles for tau_i = (2 i - 1) / (2 K) (Dabney et al. 2018, arXiv 1710.10044).
    h is monotone, so quantiles of squashed returns are squashed quantiles."""

    def mean(self, outputs: Tensor) -> Tensor:
        if self.rescaled:
            return rescale(unrescale(outputs).mean(-1))
        return outputs.mean(-1)

    def std(self, outputs: Tensor) -> Tensor:
        return outputs.std(-1, unbiased=False)


def value_distribution(config: QHeadsConfig, rescaled: bool) -> ValueDistribution | None:
    """Return the distribution that ``config`` (with resolved defaults) chooses, for squashed values
    if ``rescaled``; None: Q-values alone."""
    if config.value_distribution == "none":
        return None
    if config.value_distribution == "quantile":
        return Quantiles(config.num_atoms, rescaled)
    assert config.v_min is not None and config.v_max is not None
    return Categorical(config.num_atoms, config.v_min, config.v_max, rescaled)


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

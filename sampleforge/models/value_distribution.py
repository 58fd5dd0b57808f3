"""Distributions of an action's return, represented by K numbers per action.

With ``rescaled``, the distributions are those of squashed returns h(G) (`ops.value_rescaling`). The
Q-value of an action is the mean of its *returns*, squashed again: h(E[h^-1(h(G))]). So the best
action is the one with the best mean return, and Q-values have the same meaning as without
distributions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sampleforge.models.config import QHeadsConfig
from sampleforge.ops.r2d2 import rescale, unrescale


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

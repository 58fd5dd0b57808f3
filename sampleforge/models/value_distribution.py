"""What K numbers per action say of the distribution of its return.

With ``rescaled``, distributions are those of squashed returns h(G) (`ops.value_rescaling`). The
Q-value of an action is the mean of its *returns*, squashed again: h(E[h^-1(h(G))]), so that the
best action is the one with the best return on average, and Q-values are as without distributions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sampleforge.models.config import QHeadsConfig
from sampleforge.ops.value_rescaling import rescale, unrescale


class ValueDistribution(nn.Module):
    """``size`` numbers per action, the last axis of what is called ``outputs``."""

    def __init__(self, size: int, rescaled: bool) -> None:
        super().__init__()
        self.size = size
        self.rescaled = rescaled

    def mean(self, outputs: Tensor) -> Tensor:
        """[..., K] -> [...]: Q-values."""
        raise NotImplementedError

    def std(self, outputs: Tensor) -> Tensor:
        """[..., K] -> [...]: standard deviations, of squashed returns if rescaled."""
        raise NotImplementedError

    def moved(self, values: Tensor, returns: Tensor, discount: Tensor) -> Tensor:
        """[B, K]: returns + discount * values for values [B, K] or [K], returns and discount [B];
        through h^-1 and h, if rescaled."""
        following = unrescale(values) if self.rescaled else values
        found = returns.unsqueeze(-1) + discount.unsqueeze(-1) * following
        return rescale(found) if self.rescaled else found


class Categorical(ValueDistribution):
    """Logits of the probabilities of ``atoms`` [K], evenly spaced from v_min to v_max, which are
    squashed if rescaled (Bellemare et al. 2017, arXiv 1707.06887)."""

    atoms: Tensor
    returns: Tensor

    def __init__(self, size: int, v_min: float, v_max: float, rescaled: bool) -> None:
        super().__init__(size, rescaled)
        ends = torch.tensor([v_min, v_max])
        low, high = (rescale(ends) if rescaled else ends).tolist()
        atoms = torch.linspace(low, high, size)
        # The config says what they are, and so a checkpoint does not.
        self.register_buffer("atoms", atoms, persistent=False)
        self.register_buffer("returns", unrescale(atoms) if rescaled else atoms, persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        found = (outputs.softmax(-1) * self.returns).sum(-1)  # a matmul would be bf16's, at times
        return rescale(found) if self.rescaled else found

    def std(self, outputs: Tensor) -> Tensor:
        probabilities = outputs.softmax(-1)
        mean = (probabilities * self.atoms).sum(-1, keepdim=True)
        return (probabilities * (self.atoms - mean).square()).sum(-1).sqrt()


class Quantiles(ValueDistribution):
    """The quantiles themselves, for tau_i = (2 i - 1) / (2 K) (Dabney et al. 2018, arXiv
    1710.10044). h is monotone: quantiles of squashed returns are squashed quantiles."""

    def mean(self, outputs: Tensor) -> Tensor:
        if self.rescaled:
            return rescale(unrescale(outputs).mean(-1))
        return outputs.mean(-1)

    def std(self, outputs: Tensor) -> Tensor:
        return outputs.std(-1, unbiased=False)


def value_distribution(config: QHeadsConfig, rescaled: bool) -> ValueDistribution | None:
    """What ``config`` chose, for a network that learns squashed values or not; None: Q-values
    alone. The config is a fitted one."""
    if config.value_distribution == "none":
        return None
    if config.value_distribution == "quantile":
        return Quantiles(config.num_atoms, rescaled)
    assert config.v_min is not None and config.v_max is not None
    return Categorical(config.num_atoms, config.v_min, config.v_max, rescaled)

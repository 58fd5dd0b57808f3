"""The importance weights of a sample that was not drawn uniformly."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sampleforge.ops.running_stats import Gather, alone


def importance_weights(
    scaled_probability: torch.Tensor,
    beta: float | torch.Tensor,
    count: Callable[[], torch.Tensor],
    gather: Gather = alone,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the importance weights, float32 [B], and this learner's fraction of ``count``.

    The weights are (N P(i)) ** -beta, divided by the largest of all learners' parts;
    ``scaled_probability`` [B] is N P(i) (Schaul et al. 2016, arXiv 1511.05952, section 3.4).
    ``count`` returns the number of items, or steps, of this part that the loss is a mean over, [].
    """
    weights = scaled_probability.pow(-beta)
    largest = weights.max()
    if gather is alone:
        return (weights / largest).float(), torch.ones_like(largest)
    own = torch.stack((largest, count().to(weights.dtype)))
    every_largest, counts = gather(own).unbind(1)
    return (weights / every_largest.max()).float(), own[1] / counts.sum().clamp(min=1.0)


def share_of(
    count: Callable[[], torch.Tensor], device: torch.device, gather: Gather = alone
) -> torch.Tensor:
    """Return this learner's fraction of ``count`` (`importance_weights`), for a sample that was
    drawn uniformly, float64 [], on the ``device``."""
    if gather is alone:
        return torch.ones((), dtype=torch.float64, device=device)
    own = count().double()
    return own / gather(own[None]).sum().clamp(min=1.0)

"""The priority of a sequence (Kapturowski et al. 2019, R2D2, section 2.3)."""

from __future__ import annotations

from torch import Tensor

ETA = 0.9
"""R2D2's: one large error counts, however long the sequence is."""


def sequence_priority(errors: Tensor, counted: Tensor, eta: float = ETA) -> Tensor:
    """[B]: eta max_t |error| + (1 - eta) mean_t |error| over the steps that are ``counted``.

    ``errors`` float [T, B], ``counted`` bool [T, B]. 0 for a sequence without any such step.
    """
    sizes = errors.abs().masked_fill(~counted, 0.0)
    mean = sizes.sum(0) / counted.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1 - eta) * mean

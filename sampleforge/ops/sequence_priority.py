"""The priority of a sequence (Kapturowski et al. 2019, R2D2, section 2.3)."""

from __future__ import annotations

from torch import Tensor

ETA = 0.9
"""R2D2's value: one large error counts, however long the sequence is."""


def sequence_priority(errors: Tensor, counted: Tensor, eta: float = ETA) -> Tensor:
    """Return eta max_t |error| + (1 - eta) mean_t |error| [B] over the steps that are ``counted``.

    ``errors`` float [T, B], ``counted`` bool [T, B]. A sequence without a counted step has 0.
    """
    sizes = errors.abs().masked_fill(~counted, 0.0)
    mean = sizes.sum(0) / counted.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1 - eta) * mean

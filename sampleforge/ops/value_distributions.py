"""Distributions of returns: projection onto atoms (C51), loss of quantiles (QR-DQN)."""

from __future__ import annotations

import torch
from torch import Tensor


def project(positions: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """[B, K]: probabilities [B, K] at ``positions`` [B, K], moved to the evenly spaced ``atoms``
    [K], each to the two nearest in proportion to its nearness, and from outside to the outermost:

        m_i = sum_j [1 - |clip(x_j) - z_i| / dz]_0^1 p_j

    (Bellemare et al. 2017, arXiv 1707.06887, eq. 7). Means within the atoms are kept.
    """
    assert positions.shape == probabilities.shape and positions.ndim == 2, positions.shape
    last = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / last
    place = ((positions - atoms[0]) / spacing).clamp(0, last)
    below = place.floor().clamp(max=last - 1)
    share = place - below
    below = below.long()
    found = torch.zeros_like(probabilities)
    found.scatter_add_(1, below, probabilities * (1 - share))
    return found.scatter_add_(1, below + 1, probabilities * share)


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """float32 [count]: the tau of each of ``count`` quantiles, (2 i - 1) / (2 count)."""
    return (torch.arange(count, device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """[...]: sum_i mean_j |tau_i - 1{u_ij < 0}| L(u_ij) / kappa for u_ij = target_j - quantile_i,
    ``quantiles`` [..., N], ``targets`` [..., M] and L the Huber loss with ``kappa``.

    Dabney et al. 2018, arXiv 1710.10044, eq. 10, divided by kappa, so that it goes over into the
    loss of quantile regression, |u| for L(u) / kappa, which kappa 0 is.
    """
    assert quantiles.shape[:-1] == targets.shape[:-1], (quantiles.shape, targets.shape)
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., N, M]
    size = errors.abs()
    if kappa:
        size = torch.where(size <= kappa, size.square() / (2 * kappa), size - kappa / 2)
    tau = midpoints(quantiles.shape[-1], quantiles.device).unsqueeze(-1)
    return ((tau - (errors.detach() < 0).float()).abs() * size).mean(-1).sum(-1)

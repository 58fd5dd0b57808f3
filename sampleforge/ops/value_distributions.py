"""Distributions of returns: the projection onto atoms (C51) and the quantile loss (QR-DQN)."""

from __future__ import annotations

import torch
from torch import Tensor


def project(positions: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Project ``probabilities`` [B, K] at ``positions`` [B, K] onto evenly spaced ``atoms`` [K].

    Each probability is split between the two nearest atoms in proportion to its nearness;
    positions outside the atoms count as the outermost atom. Returns [B, K]:

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
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, below, probabilities * (1 - share))
    return projected.scatter_add_(1, below + 1, probabilities * share)


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """Return the tau of each of ``count`` quantiles, (2 i - 1) / (2 count), float32 [count]."""
    return (torch.arange(count, device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """Return sum_i mean_j |tau_i - 1{u_ij < 0}| L(u_ij) / kappa [...].

    Here u_ij = target_j - quantile_i, ``quantiles`` is [..., N], ``targets`` [..., M], and L is the
    Huber loss with ``kappa``. It is eq. 10 of Dabney et al. 2018, arXiv 1710.10044, divided by
    kappa. For kappa -> 0 it tends to the loss of quantile regression, with |u| in place of
    L(u) / kappa; kappa 0 gives that loss.
    """
    assert quantiles.shape[:-1] == targets.shape[:-1], (quantiles.shape, targets.shape)
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., N, M]
    size = errors.abs()
    if kappa:
        size = torch.where(size <= kappa, size.square() / (2 * kappa), size - kappa / 2)
    tau = midpoints(quantiles.shape[-1], quantiles.device).unsqueeze(-1)
    return ((tau - (errors.detach() < 0).float()).abs() * size).mean(-1).sum(-1)

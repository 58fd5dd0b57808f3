"""Batch renormalisation of the layers of several networks that are computed together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

RATE = 0.01
"""Part of the way that the running statistics move to those of a batch."""
EPS = 1e-3
"""Added to a variance."""
MOST_RATIO, MOST_SHIFT = 3.0, 5.0
"""Limits of r, which is also at least 1 / `MOST_RATIO`, and of d, on both sides of 0."""
FARTHEST = 10.0
"""Normalised numbers are clipped to +- this, before scale and shift. Those of a unit that is active
in few rows are very large there, so that a step changes the values of these rows too much: without
the clip the critics of most runs of BipedalWalker diverged (benchmarks/results/crossq.md)."""
WARM_UP = 100_000
"""Batches up to which r is 1 and d is 0, as in batch normalisation: at first the running statistics
lag far behind the weights."""


class Renorm(NamedTuple):
    """What a batch is normalised by: (x - its mean) / ``std`` * ``r`` + ``d``."""

    std: Tensor
    r: Tensor
    d: Tensor


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, arXiv 1702.03275) of each number of [N, B, F] over B, with
    a scale and a shift of its own for each of N networks.

    In training mode, x becomes (x - mean) / std * r + d, clipped to +- `FARTHEST`, by the mean and
    standard deviation of the batch; r and d, which no gradient flows through, move it as near to
    what the running statistics would make of it as `MOST_RATIO` and `MOST_SHIFT` allow. In
    evaluation mode the running statistics alone are used. They take in the last batch when `follow`
    is called, so that a learner can leave out one that it does not learn from.
    """

    mean: Tensor
    """The running mean, [N, 1, F]."""
    var: Tensor
    """The running variance, [N, 1, F]."""
    batches: Tensor
    """Number of batches in the running statistics, []."""
    batch_mean: Tensor
    """Of the last batch, [N, 1, F]; not part of the state."""
    batch_var: Tensor
    """Of the last batch, [N, 1, F]; not part of the state."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        shape = count, 1, width
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("batch_mean", torch.zeros(shape), persistent=False)
        self.register_buffer("batch_var", torch.ones(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, B, F], normalised, float32."""
        x = x.float()
        if not self.training:
            return self._scaled((x - self.mean) * (self.var + EPS).rsqrt())
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        var = centred.square().mean(1, keepdim=True)  # x.var takes ten times as long
        self.batch_mean.copy_(mean.detach())
        self.batch_var.copy_(var.detach())
        by = renorm(mean, var, (self.mean, self.var), self.batches)
        return self._scaled(centred / by.std * by.r + by.d)

    def _scaled(self, normal: Tensor) -> Tensor:
        """Return normalised numbers, clipped, with scale and shift."""
        return torch.addcmul(self.bias, normal.clamp(-FARTHEST, FARTHEST), self.weight)

    @torch.no_grad()
    def follow(self) -> None:
        """Take the statistics of the last batch into the running ones.

        Unlike in the paper, a variance counts as at most `MOST_RATIO` ** 2 times the running one.
        Otherwise one far number in a replay, which is drawn again and again, would keep the running
        variance at its own size; and a real change of scale is followed all the same, by 8% a
        batch."""
        most = MOST_RATIO**2 * (self.var + EPS)
        self.mean.lerp_(self.batch_mean, RATE)
        self.var.lerp_(torch.minimum(self.batch_var, most), RATE)
        self.batches.add_(1.0)


def renorm(mean: Tensor, var: Tensor, running: tuple[Tensor, Tensor], batches: Tensor) -> Renorm:
    """Return what a batch with this ``mean`` and ``var`` is normalised by, beside the ``running``
    mean and variance of so many ``batches`` []."""
    std, usual = (var + EPS).sqrt(), (running[1] + EPS).sqrt()
    is_warm = (batches >= WARM_UP).to(std.dtype)
    r = (std.detach() / usual).clamp(1.0 / MOST_RATIO, MOST_RATIO)
    d = ((mean.detach() - running[0]) / usual).clamp(-MOST_SHIFT, MOST_SHIFT)
    return Renorm(std, 1.0 + is_warm * (r - 1.0), is_warm * d)

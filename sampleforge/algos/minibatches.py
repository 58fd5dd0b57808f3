"""Batches of as many steps as happened to be taken, and those to which each env gives a number of
its own: variable experience rollout (Wijmans et al. 2022, arXiv 2210.05064).

Fast envs give more steps than slow ones, so their states would be over-represented: a sample comes
from env e with the probability n_e / sum(n), where with equal shares it would be 1 / envs. The
importance weight of its steps is m / n_e, m = sum(n) / envs being the equal share, truncated at 1
(the steps of a slow env are few: weights above 1 would only add variance). Together an env's steps
thus count for at most m, however many they are. In a complete round m is the rollout T, as the
paper has it; where rounds are cut short, it is less, and where they go on for ranks that are late,
more.

Means are divided by the sum of the weights. (The paper's own code divides by the number of steps,
which makes gradients the smaller, the more uneven the envs are.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.ops.running_stats import Gather, alone


def env_share(taken: Tensor, env_row: Tensor, gather: Gather = alone) -> Tensor:
    """min(1, m / n_e) [T, B] for the steps of env row e, and 0 where none was taken.

    ``taken``: bool [T, B]; ``env_row``: int64 [B], the env row that each column is of: all of this
    rank are there, with empty columns if need be. n_e counts the steps of all columns of e; m is
    the mean of n_e over the env rows of all ranks.
    """
    assert taken.ndim == 2 and env_row.shape == taken.shape[1:], (taken.shape, env_row.shape)
    given = taken.sum(0).float()
    per_env = given.new_zeros(int(env_row.max()) + 1).index_add_(0, env_row, given)
    sizes = torch.stack((per_env.sum(), torch.ones_like(per_env).sum()))
    steps, env_rows = gather(sizes).sum(0)
    share = (steps / env_rows / per_env.clamp(min=1.0)).clamp(max=1.0).float()
    return torch.where(taken, share[env_row], 0.0)


def parts(
    taken: Tensor, count: int, *, whole_rows: bool, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """The steps that were ``taken``, bool [T, B], in ``count`` random parts of equal size (to one):
    positions in the flattened [T * B], or, with ``whole_rows``, columns.

    Ranks wait for each other at every part, so none may have fewer, and none is empty: where there
    are not enough, those that count for nothing are dealt out as well, and at last some twice.
    """
    wanted = taken.any(0) if whole_rows else taken.flatten()
    found = wanted.nonzero().squeeze(1)
    if len(found) < count:
        found = torch.arange(max(count, len(wanted)), device=taken.device) % len(wanted)
    # Ranks compare their generators: each draws as much, however many steps it shuffles.
    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    order = order.to(found.device)
    return torch.tensor_split(found[order], count)

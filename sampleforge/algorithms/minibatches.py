"""Minibatches of batches whose number of steps varies, in total and from env to env: variable
experience rollout (Wijmans et al. 2022, arXiv 2210.05064).

Fast envs give more steps than slow ones, so their states would be over-represented: a sample comes
from env e with the probability n_e / sum(n); with equal shares it would be 1 / envs. The importance
weight of the steps of env e is m / n_e, truncated at 1, where m = sum(n) / envs is the equal share.
(The steps of a slow env are few: weights above 1 would only add variance.) So all steps of an env
together count for at most m, however many they are. In a complete round m is the rollout length T,
as in the paper; m is less if the round is cut short, and more if it continues for late ranks.

Means are divided by the sum of the weights. (The paper's own code divides by the number of steps,
so that its gradients become smaller, the more uneven the envs are.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from sampleforge.ops.running_stats import Gather, alone


def env_share(step_mask: Tensor, env_row: Tensor, gather: Gather = alone) -> Tensor:
    """Return the weight of each step, min(1, m / n_e) [T, B] for env row e, and 0 where no step was
    taken.

    ``step_mask`` (bool [T, B]) marks the steps that were taken; ``env_row`` (int64 [B]) is the env
    row of each column. Every env row of this rank has a column, if need be an empty one. n_e counts
    the steps of all columns of e; m is the mean of n_e over the env rows of all ranks.
    """
    shapes = step_mask.shape, env_row.shape
    assert step_mask.ndim == 2 and env_row.shape == step_mask.shape[1:], shapes
    per_column = step_mask.sum(0).float()
    per_env = per_column.new_zeros(int(env_row.max()) + 1).index_add_(0, env_row, per_column)
    sizes = torch.stack((per_env.sum(), torch.ones_like(per_env).sum()))
    steps, env_rows = gather(sizes).sum(0)
    share = (steps / env_rows / per_env.clamp(min=1.0)).clamp(max=1.0).float()
    return torch.where(step_mask, share[env_row], 0.0)


def minibatch_indices(
    step_mask: Tensor, count: int, *, whole_rows: bool, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Divide the steps that were taken into ``count`` random minibatches, whose sizes differ by at
    most one.

    ``step_mask`` (bool [T, B]) marks the steps that were taken. The results are positions in the
    flattened [T * B], or, with ``whole_rows``, columns. Ranks wait for each other at every
    minibatch, so each rank makes ``count`` of them, none empty: if there are fewer steps (columns)
    than minibatches, steps that were not taken and count for nothing are dealt out as well, and if
    need be some twice.
    """
    wanted = step_mask.any(0) if whole_rows else step_mask.flatten()
    indices = wanted.nonzero().squeeze(1)
    if len(indices) < count:
        indices = torch.arange(max(count, len(wanted)), device=step_mask.device) % len(wanted)
    # Ranks compare their generators: each rank draws one number, however many steps it shuffles.
    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))
    order = order.to(indices.device)
    return torch.tensor_split(indices[order], count)

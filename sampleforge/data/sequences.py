"""Sequences for recurrent Q-learning: stretches of rollouts, with the state they began in."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sequences:
    """``B`` sequences of ``L`` env steps each.

    An episode may end within one and the next begin: ``first`` resets the state there, and no
    n-step window reaches over it (`sampleforge.ops.n_step.n_step_windows` over these L steps).
    """

    obs: dict[str, torch.Tensor]  # [L+1, B, ...]
    first: torch.Tensor  # bool [L+1, B], observations that begin an episode
    state: torch.Tensor  # float32 [B, S], the actor's before obs[0]
    action: torch.Tensor  # int64 [L, B]
    returns: torch.Tensor  # float32 [L, B], of the window
    discount: torch.Tensor  # float32 [L, B], 0 where the episode terminated within the window
    steps: torch.Tensor  # int64 [L, B], length of the window; 0: there is nothing to learn
    odds: torch.Tensor  # float64 [B], see `sampleforge.data.replay.Drawn`

"""Munchausen Q-learning (Vieillard, Pietquin and Geist 2020, arXiv 2007.14430, eq. 1 and 3).

With the policy pi = softmax(q / tau) of the target network's Q-values, the target of a step is

    r + alpha [tau log pi(a | s)]_{l_0}^0
      + gamma sum_a' pi(a' | s') (q(s', a') - tau log pi(a' | s'))

so that actions which the policy prefers already are rewarded, and the gaps between actions grow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST = -1.0
"""l_0 in the paper: the least scaled log-probability that is added to a reward."""


def scaled_log_policy(q: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """Return tau log softmax(q / tau) [..., A] of the Q-values ``q`` [..., A], and -inf where
    ``mask`` (bool, the same shape; at least one is True) forbids an action."""
    if mask is not None:
        q = q.masked_fill(~mask, -math.inf)
    return temperature * (q / temperature).log_softmax(-1)


def munchausen_bonus(q: Tensor, mask: Tensor | None, actions: Tensor, temperature: float) -> Tensor:
    """Return [tau log pi(a | s)]_{l_0}^0 [B] of ``actions`` (int64 [B]), to be multiplied by alpha
    and added to the rewards. ``q`` and ``mask`` are [B, A]."""
    scaled = scaled_log_policy(q, mask, temperature)
    return scaled.gather(-1, actions.unsqueeze(-1)).squeeze(-1).clamp(LOWEST, 0.0)


def soft_value(q: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """Return sum_a pi(a) (q(a) - tau log pi(a)) [...] = tau log sum_a exp(q(a) / tau), for ``q``
    [..., A]."""
    if mask is not None:
        q = q.masked_fill(~mask, -math.inf)
    return temperature * (q / temperature).logsumexp(-1)


def soft_mixture(outputs: Tensor, q: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """Return sum_a pi(a) (z(a) - tau log pi(a)) [B, K] for the K quantiles z of each action,
    ``outputs`` [B, A, K], whose means are ``q`` [B, A]: those of M-IQN (section 3.2)."""
    scaled = scaled_log_policy(q, mask, temperature)
    policy = (scaled / temperature).exp()
    entropy = -(policy * torch.where(policy > 0, scaled, 0.0)).sum(-1, keepdim=True)
    return torch.einsum("ba,bak->bk", policy, outputs) + entropy

"""Munchausen Q-learning against the literal formulas of its paper, action by action."""

from __future__ import annotations

import math

import pytest
import torch

from sampleforge.ops.munchausen import (
    munchausen_bonus,
    scaled_log_policy,
    soft_mixture,
    soft_value,
)

ROWS, ACTIONS, QUANTILES = 5, 4, 3


def literal_policy(q: list[float], allowed: list[int], tau: float) -> dict[int, float]:
    """softmax(q / tau) over the allowed actions."""
    total = sum(math.exp(q[a] / tau) for a in allowed)
    return {a: math.exp(q[a] / tau) / total for a in allowed}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tau", [0.03, 0.5])
def test_the_terms_are_the_literal_ones(tau: float, masked: bool) -> None:
    g = torch.Generator().manual_seed(1)
    outputs = torch.rand(ROWS, ACTIONS, QUANTILES, generator=g, dtype=torch.float64)
    q = outputs.mean(-1)
    mask = torch.rand(ROWS, ACTIONS, generator=g) < 0.5
    mask[:, 0] = True
    mask = mask if masked else torch.ones_like(mask)
    actions = torch.tensor([int(row.nonzero()[-1]) for row in mask])
    given = mask if masked else None
    bonus = munchausen_bonus(q, given, actions, tau)
    values, mixture = soft_value(q, given, tau), soft_mixture(outputs, q, given, tau)
    for i in range(ROWS):
        allowed = [a for a in range(ACTIONS) if mask[i, a]]
        policy = literal_policy(q[i].tolist(), allowed, tau)
        taken = max(-1.0, min(0.0, tau * math.log(policy[int(actions[i])])))
        assert bonus[i].item() == pytest.approx(taken, abs=1e-12)
        soft = sum(p * (q[i, a].item() - tau * math.log(p)) for a, p in policy.items())
        assert values[i].item() == pytest.approx(soft)
        for k in range(QUANTILES):
            each = sum(p * (outputs[i, a, k].item() - tau * math.log(p)) for a, p in policy.items())
            assert mixture[i, k].item() == pytest.approx(each)


def test_small_temperatures_give_the_greedy_value_and_a_bounded_bonus() -> None:
    """As tau goes to 0, so does the soft value's distance from the maximum; gaps of any size stay
    finite, and at -1 in the bonus."""
    q = torch.tensor([[0.0, 1e4, -1e4]])
    assert soft_value(q, None, 1e-3).item() == 1e4
    bonus = [munchausen_bonus(q, None, torch.tensor([a]), 1e-3).item() for a in range(3)]
    assert bonus == [-1.0, 0.0, -1.0]
    only = torch.tensor([[True, False, False]])
    assert soft_value(q, only, 0.03).item() == 0.0
    assert scaled_log_policy(q, only, 0.03)[0, 0].item() == 0.0
    outputs = q.unsqueeze(-1).repeat(1, 1, 2)
    assert soft_mixture(outputs, q, only, 0.03).tolist() == [[0.0, 0.0]]

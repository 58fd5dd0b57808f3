"""The weights and the moving norm of advantage-weighted imitation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sampleforge.ops.returns import (
    advantage_weights,
    moving_square,
    returns_to_go,
    weighted_imitation_loss,
)


def test_returns_are_the_literal_sums() -> None:
    reward = np.random.default_rng(0).normal(size=20).astype(np.float32)
    for t, found in enumerate(returns_to_go(reward, 0.97)):
        assert found == pytest.approx(sum(0.97**k * r for k, r in enumerate(reward[t:])), abs=1e-5)


def test_weights_are_the_exponential_up_to_the_cap() -> None:
    advantages, norm = torch.tensor([[-4.0, 0.0, 1.0, 300.0]]), torch.tensor(2.0)
    found = advantage_weights(advantages, 0.5, norm, 20.0)
    assert found.tolist()[0] == pytest.approx([math.exp(-1), 1.0, math.exp(0.25), 20.0])
    assert advantage_weights(torch.zeros(1, 3), 0.5, torch.tensor(0.0), 20.0).eq(1.0).all()


def test_the_norm_is_a_moving_average_that_begins_with_the_first_batch() -> None:
    mask = torch.tensor([[True, True, False]])
    advantages = torch.tensor([[1.0, 3.0, 100.0]])
    first = moving_square(torch.zeros((), dtype=torch.float64), advantages, mask, 0.9)
    assert float(first) == 5.0
    assert float(moving_square(first, 2 * advantages, mask, 0.9)) == pytest.approx(6.5)
    broken = torch.tensor([[math.nan, 3.0, 1.0]])
    assert float(moving_square(first, broken, mask, 0.9)) == 5.0


def test_the_loss_is_the_weighted_mean_of_valid_steps() -> None:
    log_prob = torch.tensor([[-1.0, -2.0, -9.0]], requires_grad=True)
    weights, mask = torch.tensor([[2.0, 1.0, 5.0]]), torch.tensor([[True, True, False]])
    loss = weighted_imitation_loss(log_prob, weights, mask, torch.tensor(2.0))
    assert float(loss.detach()) == 2.0
    loss.backward()
    assert log_prob.grad is not None and log_prob.grad.tolist() == [[-1.0, -0.5, 0.0]]

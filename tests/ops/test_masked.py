"""Means over the rows that count, and advantages normalised by theirs."""

from __future__ import annotations

import pytest
import torch

from sampleforge.ops.masked import masked_mean, normalise_rows
from sampleforge.ops.running_stats import row_moments


def normalised(x: torch.Tensor, mask: torch.Tensor, least_std: float = 0.0) -> list[float]:
    """Of the valid elements of one row."""
    moments = row_moments(x.unsqueeze(0), mask.unsqueeze(0))
    found: list[float] = normalise_rows(x.unsqueeze(0), moments, least_std)[0][mask].tolist()
    return found


def test_masked_rows_reach_neither_value_nor_gradient() -> None:
    bad = torch.tensor([0.1, 1e4, torch.nan])
    mask = torch.tensor([True, False, False])
    for counts in (mask, 0.5 * mask):
        x = bad.clone().requires_grad_()
        loss = masked_mean(x.exp(), counts)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.isfinite()
        assert masked_mean(x, counts).item() == pytest.approx(0.1)


def test_no_valid_row_gives_zero_and_a_zero_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0 and x.grad is not None and x.grad.tolist() == [0.0] * 3


def test_rows_are_normalised_by_their_valid_elements() -> None:
    mask = torch.tensor([True, False, True])
    assert normalised(torch.tensor([1.0, 100.0, 3.0]), mask) == pytest.approx([-1.0, 1.0])
    assert normalised(torch.tensor([1.0, torch.nan, 3.0]), mask) == pytest.approx([-1.0, 1.0])
    assert normalised(torch.full((4,), 5.0), torch.ones(4, dtype=torch.bool)) == [0.0] * 4
    nothing = row_moments(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool))
    assert normalise_rows(torch.zeros(1, 3), nothing).tolist() == [[0.0] * 3]


def test_each_row_is_normalised_by_its_own_moments() -> None:
    x = torch.tensor([[1.0, 3.0], [10.0, 50.0]])
    moments = row_moments(x, torch.ones_like(x))
    assert normalise_rows(x, moments).tolist() == [pytest.approx([-1.0, 1.0])] * 2


def test_advantages_that_are_noise_beside_the_returns_are_not_blown_up() -> None:
    x, every = torch.tensor([0.01, -0.01, 0.02, -0.02]), torch.ones(4, dtype=torch.bool)
    assert normalised(x, every, least_std=0.1) == pytest.approx((x / 0.1).tolist())
    large = torch.tensor(normalised(100 * x, every, least_std=0.1))
    torch.testing.assert_close(large.std(correction=0), torch.tensor(1.0))

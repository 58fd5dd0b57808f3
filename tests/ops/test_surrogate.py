"""PPO's loss terms, with values and gradients worked out by hand."""

from __future__ import annotations

import pytest
import torch

from sampleforge.ops.running_stats import scalar_moments
from sampleforge.ops.surrogate import (
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    masked_mean,
    normalise,
)


def normalised(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return normalise(x, scalar_moments(x, mask), mask)


def test_surrogate_value_and_gradient_by_hand() -> None:
    """e = 0.25: the range is [0.8, 1.25]. Rows: inside; above, A > 0 (clipped: no gradient); above,
    A < 0 (not clipped); below, A > 0 (not clipped); below, A < 0 (clipped)."""
    ratios = torch.tensor([1.1, 1.5, 1.5, 0.5, 0.5], dtype=torch.float64)
    advantages = torch.tensor([2.0, 2.0, -2.0, 2.0, -2.0], dtype=torch.float64)
    log_ratio = ratios.log().requires_grad_()
    loss = clipped_surrogate(log_ratio, advantages, 0.25)
    loss.backward()
    terms = [1.1 * 2, 1.25 * 2, 1.5 * -2, 0.5 * 2, 0.8 * -2]
    assert loss.item() == pytest.approx(-sum(terms) / 5)
    by_hand = [-1.1 * 2 / 5, 0.0, -1.5 * -2 / 5, -0.5 * 2 / 5, 0.0]
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx(by_hand)


def test_value_loss_value_and_gradient_by_hand() -> None:
    """clip 1, v_old 0, R 3. v = 2: max((2-3)^2, (1-3)^2) = 4, flat; v = 0.5: 6.25, slope 2(v-R);
    v = 6: 9, slope 2(v-R)."""
    values = torch.tensor([2.0, 0.5, 6.0], requires_grad=True)
    loss = clipped_value_loss(values, torch.zeros(3), torch.full((3,), 3.0), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx((4 + 6.25 + 9) / 3)
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, -5.0 / 3, 6.0 / 3])
    plain = clipped_value_loss(values, torch.zeros(3), torch.full((3,), 3.0), None)
    assert plain.item() == pytest.approx((1 + 6.25 + 9) / 3)


def test_masked_rows_reach_neither_value_nor_gradient() -> None:
    bad = torch.tensor([0.1, 1e4, torch.nan])
    mask = torch.tensor([True, False, False])
    for loss_of in (
        lambda x: clipped_surrogate(x, bad, 0.1, mask),
        lambda x: clipped_value_loss(x, bad, bad, 1.0, mask),
        lambda x: approx_kl(x, mask),
    ):
        x = bad.clone().requires_grad_()
        loss = loss_of(x)
        loss.backward()
        assert loss.isfinite() and x.grad is not None and x.grad[1:].tolist() == [0.0, 0.0]
    assert torch.equal(
        clipped_surrogate(bad, bad, 0.1, mask), clipped_surrogate(bad[:1], bad[:1], 0.1)
    )


def test_no_valid_row_gives_zero_and_a_zero_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0 and x.grad is not None and x.grad.tolist() == [0.0] * 3
    assert normalised(x.detach(), torch.zeros(3, dtype=torch.bool)).tolist() == [0.0] * 3


def test_normalise_uses_the_valid_rows_only() -> None:
    x = torch.tensor([1.0, 100.0, 3.0])
    mask = torch.tensor([True, False, True])
    assert normalised(x, mask).tolist() == pytest.approx([-1.0, 0.0, 1.0])
    every = torch.ones(4, dtype=torch.bool)
    assert normalised(torch.tensor([1.0, 3.0]), every[:2]).tolist() == pytest.approx([-1.0, 1.0])
    assert normalised(torch.full((4,), 5.0), every).tolist() == [0.0] * 4


def test_approx_kl_is_unbiased_and_never_negative() -> None:
    """Two normals of the same width, one apart by m: KL is m^2 / 2."""
    g = torch.Generator().manual_seed(0)
    x, m = torch.randn(200_000, generator=g, dtype=torch.float64), 0.3
    log_ratio = -0.5 * (x - m) ** 2 + 0.5 * x**2
    assert approx_kl(log_ratio).item() == pytest.approx(m * m / 2, rel=0.02)
    assert approx_kl(torch.zeros(3)).item() == 0.0
    assert (torch.stack([approx_kl(v) for v in x[:50]]) >= 0).all()


def test_the_clip_fraction_counts_ratios_outside_the_clip_range_among_valid_rows() -> None:
    log_ratio = torch.tensor([1.05, 1.2, 0.95, 0.8]).log()
    assert clip_fraction(log_ratio, 0.1).item() == 0.5
    assert clip_fraction(log_ratio, 0.1, torch.tensor([True, True, True, False])).item() == (
        pytest.approx(1 / 3)
    )


def test_advantages_that_are_noise_beside_the_returns_are_not_blown_up() -> None:
    x = torch.tensor([0.01, -0.01, 0.02, -0.02])
    all_rows = scalar_moments(x, torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(normalise(x, all_rows, least_std=0.1), x / 0.1)
    torch.testing.assert_close(
        normalise(100 * x, scalar_moments(100 * x, x > -1), least_std=0.1).std(correction=0),
        torch.tensor(1.0),
    )

"""How much of the variance of value targets is explained: against numpy, in parts, and in a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.ops.masked import MOMENTS, explained_variance, value_moments
from sampleforge.workers.metrics import ReportMetrics
from tests.support.graphs import updates
from tests.support.learners import config


def explained(values: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> float | None:
    return explained_variance(
        {n: float(m) for n, m in value_moments(values, targets, mask).items()}
    )


def example(offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randn(5, 4, generator=generator) * 10 + offset
    values = targets + torch.randn(5, 4, generator=generator) * 3
    mask = torch.rand(5, 4, generator=generator) < 0.7
    return values, targets, mask


@pytest.mark.parametrize("offset", [0.0, 500.0])
def test_it_is_one_minus_the_ratio_of_the_variances_over_valid_rows(offset: float) -> None:
    values, targets, mask = example(offset)
    v, t = values[mask].double().numpy(), targets[mask].double().numpy()
    assert explained(values, targets, mask) == pytest.approx(1 - np.var(t - v) / np.var(t))


def test_rows_that_are_masked_out_may_hold_anything() -> None:
    values, targets, mask = example()
    expected = explained(values, targets, mask)
    targets[~mask] = torch.nan
    assert explained(values, targets, mask) == expected


@pytest.mark.parametrize(
    ("values", "expected"), [("perfect", 1.0), ("constant", 0.0), ("opposite", -3.0)]
)
def test_it_is_one_for_the_targets_zero_for_a_constant_and_negative_for_worse(
    values: str, expected: float
) -> None:
    _, targets, mask = example()
    guess = {"perfect": targets, "constant": targets * 0 + 7, "opposite": -targets}[values]
    assert explained(guess, targets, mask) == pytest.approx(expected)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1234.5])
def test_it_is_none_where_the_targets_do_not_vary(constant: float) -> None:
    values, targets, mask = example()
    assert explained(values, torch.full_like(targets, constant), mask) is None
    assert explained(values, targets, torch.zeros_like(mask)) is None


def test_moments_of_parts_give_that_of_the_whole() -> None:
    values, targets, mask = example(50.0)
    parts = [value_moments(values[at], targets[at], mask[at]) for at in (slice(2), slice(2, 5))]
    counts = [float(mask[at].sum()) for at in (slice(2), slice(2, 5))]
    weighted = {
        name: sum(float(part[name]) * n for part, n in zip(parts, counts, strict=True))
        / sum(counts)
        for name in MOMENTS
    }
    assert explained_variance(weighted) == pytest.approx(explained(values, targets, mask))


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_a_learner_reports_it_and_a_report_averages_it(advantage: str) -> None:
    report = ReportMetrics()
    found = [m for _, m in updates(config(advantage=advantage), 4)]
    for metrics in found:
        assert not set(MOMENTS) & set(metrics)
        assert metrics["explained_variance"] <= 1
        report.add(metrics)
    without = {n: v for n, v in found[0].items() if n != "explained_variance"}
    report.add(without)  # its targets did not vary
    values = [m["explained_variance"] for m in found]
    assert min(values) <= report.take()["explained_variance"] <= max(values)

"""Statistics of observations: one absurd number does not change them, a change of scale does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.encoding import Encoding, encodings
from sampleforge.models.normaliser import WARM_UP, LeafNormaliser, ObservationNormaliser
from sampleforge.ops.far_values import extremes
from sampleforge.ops.running_stats import moments
from sampleforge.spec import ArraySpec

THREE = {"obs": ArraySpec((3,), "float32")}


def statistics(size: int = 3, dtype: str = "float32") -> LeafNormaliser:
    return LeafNormaliser(ArraySpec((size,), dtype), Encoding("vector", ""))


def normal(seed: int, rows: int = 2000) -> torch.Tensor:
    """Elements of three scales, each around another mean."""
    drawn = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return drawn * torch.tensor([1e-3, 1.0, 1e3]) + torch.tensor([1.0, 0.0, -5e3])


def updated(leaf: LeafNormaliser, x: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    leaf.merge(leaf.moments(x, mask))


@pytest.mark.parametrize("absurd", [1e8, -1e8, 1e38])
@pytest.mark.parametrize("element", [0, 1, 2])
def test_an_absurd_number_in_each_environment_does_not_change_them(
    element: int, absurd: float
) -> None:
    leaf, control = statistics(), statistics()
    for seed in range(10):
        x = normal(seed)
        updated(control, x)
        if seed == 1:
            x[:32, element] = absurd
        updated(leaf, x)
    assert leaf.count == control.count
    torch.testing.assert_close(leaf.total_var, control.total_var, rtol=0.2, atol=0)
    assert ((leaf.total_mean - control.total_mean).abs() < 0.02 * control.total_var.sqrt()).all()


@pytest.mark.parametrize("absurd", [1e3, 1e5, -1e8])
@pytest.mark.parametrize("part", [16, 2])
def test_the_first_observations_are_bounded_by_the_middle_half_of_them(
    absurd: float, part: int
) -> None:
    leaf, control = statistics(1), statistics(1)
    for seed in range(5):
        x = normal(seed, 160)[:, 1:2].clone()
        updated(control, x)
        if seed == 0:
            x[:part] = absurd
        updated(leaf, x)
    assert leaf.count == control.count == 800 < WARM_UP
    assert leaf.total_var < 4 * control.total_var, "not 20,000"


def test_first_observations_of_which_most_are_one_value_are_counted_as_they_are() -> None:
    leaf, x = statistics(1), torch.zeros(160, 1)
    x[::8] = 1e3
    updated(leaf, x)
    assert leaf.total_mean.item() == pytest.approx(125)


def test_ordinary_numbers_are_counted_exactly() -> None:
    leaf, everything = statistics(), torch.cat([normal(seed) for seed in range(5)])
    everything[-1, 1] = 80.0  # far, but not absurd
    for x in everything.split(2000):
        updated(leaf, x)
    whole = moments(everything)
    torch.testing.assert_close(leaf.total_mean, whole.mean, rtol=1e-10, atol=0)
    torch.testing.assert_close(leaf.total_var, whole.var, rtol=1e-10, atol=0)


@pytest.mark.parametrize("rows", [1, 2000, 20_001])
def test_moments_of_ordinary_numbers_are_the_plain_ones_to_the_bit(rows: int) -> None:
    leaf = statistics()
    updated(leaf, normal(0))
    found, plain = leaf.moments(normal(1, rows)), moments(normal(1, rows))
    assert torch.equal(found.mean, plain.mean) and torch.equal(found.var, plain.var)
    assert found.count == plain.count


def test_a_batch_without_rows_changes_nothing() -> None:
    leaf = statistics()
    updated(leaf, normal(0))
    before = leaf.total_mean.clone()
    updated(leaf, normal(1, 0))
    updated(leaf, normal(1), torch.zeros(2000, dtype=torch.bool))
    assert torch.equal(leaf.total_mean, before) and leaf.count == 2000


@pytest.mark.parametrize("row", [0, 12_345, 20_000])
@pytest.mark.parametrize("absurd", [1e8, -1e8, torch.inf])
def test_one_absurd_number_is_found_in_a_batch_of_any_size(row: int, absurd: float) -> None:
    leaf, x = statistics(), normal(1, 20_001)
    updated(leaf, normal(0))
    x[row, 1] = absurd
    assert leaf.moments(x).var[1] < 1.1


@pytest.mark.parametrize("shape", [(1, 3), (63, 2), (64, 2), (1000, 17), (130, 2, 3), (200,)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_extremes_are_those_of_each_element(shape: tuple[int, ...], dtype: str) -> None:
    x = (np.random.default_rng(0).normal(size=shape) * 1000).astype(dtype)
    low, high = extremes(x)
    np.testing.assert_array_equal(low, x.min(0))
    np.testing.assert_array_equal(high, x.max(0))


@pytest.mark.parametrize("rows", [2000, 20_000])
@pytest.mark.parametrize("part", [1.0, 0.1])
@pytest.mark.parametrize("growth", [1e3, 1e6])
def test_a_change_of_scale_is_followed(rows: int, part: float, growth: float) -> None:
    """Of every observation, or of a tenth of them, as in a later level of a curriculum."""
    leaf = statistics()
    for seed in range(100):
        updated(leaf, normal(seed % 10))
    total = leaf.count.item()
    for seed in range(100):
        x = normal(seed, rows)
        x[: int(part * rows)] *= growth
        updated(leaf, x)
        if leaf.total_var[1] > 0.1 * growth**2 * part * (leaf.count - total) / leaf.count:
            break
    else:
        raise AssertionError(f"deviation {leaf.total_var[1].sqrt():g} after 100 batches")


def test_an_element_that_was_constant_may_begin_to_vary() -> None:
    leaf = statistics(1)
    for _ in range(50):
        updated(leaf, torch.zeros(2000, 1))
    for seed in range(50):
        x = torch.zeros(2000, 1)
        x[:100] = torch.randn(100, 1, generator=torch.Generator().manual_seed(seed))
        updated(leaf, x)
    assert leaf.total_var.item() == pytest.approx(0.05 / 2, rel=0.3)


def test_masked_rows_and_bytes_are_not_looked_at() -> None:
    leaf, x = statistics(), normal(0)
    updated(leaf, x)
    x[5] = torch.nan
    updated(leaf, x, torch.arange(2000) != 5)
    assert leaf.count == 3999 and torch.isfinite(leaf.total_var).all()
    codes = statistics(1, "uint8")
    x = torch.zeros(4000, 1, dtype=torch.uint8)
    updated(codes, x)
    x[7] = 255
    updated(codes, x)
    assert codes.total_mean.item() == pytest.approx(255 / 8000)


def test_ranks_and_minibatches_count_alike() -> None:
    """Two ranks with half of the rows each have the statistics of one with all of them."""
    one, two = (ObservationNormaliser(THREE, encodings(THREE)) for _ in range(2))
    for seed in range(3):
        x = normal(seed)
        if seed == 1:
            x[3, 0] = x[1500, 1] = 1e8
        one.update({"obs": x})
        halves = x.split(1000)
        leaf = two.leaf("obs")
        parts = [leaf.moments(half) for half in halves]
        flat = torch.stack([torch.cat((p.mean, p.var, p.count.view(1))) for p in parts])

        def gather(own: torch.Tensor, flat: torch.Tensor = flat) -> torch.Tensor:
            return flat

        two.update({"obs": halves[0]}, gather=gather)
    assert one.leaf("obs").count == two.leaf("obs").count == 3 * 2000 > WARM_UP
    torch.testing.assert_close(
        one.leaf("obs").total_var, two.leaf("obs").total_var, rtol=1e-9, atol=0
    )

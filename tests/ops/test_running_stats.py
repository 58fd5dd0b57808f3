"""Running mean and variance: merged exactly, whatever the pieces."""

from __future__ import annotations

import torch

from sampleforge.ops.running_stats import Moments, alone, merge, moments, over_ranks, scalar_moments


def test_merging_pieces_equals_the_moments_of_the_whole() -> None:
    g = torch.Generator().manual_seed(0)
    x = 1e4 + torch.randn(1000, 3, 2, generator=g, dtype=torch.float64)
    whole, total = moments(x), moments(x[:0])
    for piece in x.split([1, 0, 7, 500, 492]):
        total = merge(total, moments(piece))
    assert total.count == 1000 and total.count.dtype == torch.float64
    assert torch.allclose(total.mean, whole.mean, rtol=1e-12)
    assert torch.allclose(total.var, whole.var, rtol=1e-9)
    assert torch.allclose(total.var, x.var(0, correction=0), rtol=1e-9)


def test_masked_rows_are_not_counted_even_if_they_hold_nan() -> None:
    x = torch.tensor([[1.0], [torch.nan], [3.0]])
    found = moments(x, torch.tensor([True, False, True]))
    assert (found.mean.item(), found.var.item(), found.count.item()) == (2.0, 1.0, 2.0)


def test_merging_moments_without_observations_has_no_effect() -> None:
    empty = moments(torch.zeros(4, 2), torch.zeros(4, dtype=torch.bool))
    assert empty.count == 0 and merge(empty, empty).mean.tolist() == [0.0, 0.0]
    some = moments(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    for merged in (merge(empty, some), merge(some, empty)):
        assert torch.equal(merged.mean, some.mean) and torch.equal(merged.var, some.var)
        assert merged.count == 2


def test_counts_beyond_float32_still_grow() -> None:
    count = torch.tensor(1e9, dtype=torch.float64)
    many = Moments(torch.zeros(1).double(), torch.ones(1).double(), count)
    assert merge(many, moments(torch.ones(3, 1))).count == 1e9 + 3


def test_moments_of_masked_elements_without_indexing() -> None:
    x = torch.tensor([[1.0, torch.nan], [3.0, 8.0]])
    mask = torch.tensor([[True, False], [True, True]])
    found, expected = scalar_moments(x, mask), moments(x[mask])
    assert [found.mean, found.var, found.count] == [expected.mean, expected.var, expected.count]


def test_moments_over_ranks_are_those_of_all_rows_together() -> None:
    g = torch.Generator().manual_seed(0)
    x = 1e4 + torch.randn(100, 2, 3, generator=g, dtype=torch.float64)
    parts = [moments(piece) for piece in x.split([1, 0, 59, 40])]

    def gather(own: torch.Tensor) -> torch.Tensor:
        flat = [torch.cat((p.mean.flatten(), p.var.flatten(), p.count.view(1))) for p in parts]
        assert torch.equal(flat[2], own)
        return torch.stack(flat)

    found, whole = over_ranks(parts[2], gather), moments(x)
    assert found.count == 100
    assert torch.allclose(found.mean, whole.mean, rtol=1e-13)
    assert torch.allclose(found.var, whole.var, rtol=1e-9)
    own = over_ranks(parts[2], alone)
    assert torch.equal(own.mean, parts[2].mean) and torch.equal(own.var, parts[2].var)

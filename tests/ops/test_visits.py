"""Observations that were there before in their episode, against a set for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.ops.visits import fingerprints, first_visits


def test_first_visits_are_those_of_a_set_for_each_episode() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, rows = 60, 5
    leaves = {
        "cell": torch.randint(0, 3, (steps, rows), generator=generator),
        "map": torch.randint(0, 2, (steps, rows, 1, 3), generator=generator, dtype=torch.uint8),
    }
    is_first = torch.rand(steps, rows, generator=generator) < 0.1
    expected = np.empty((steps, rows), bool)
    for b in range(rows):
        seen: set[tuple[int, ...]] = set()
        for t in range(steps):
            if is_first[t, b]:
                seen = set()
            observation = (int(leaves["cell"][t, b]), *leaves["map"][t, b].flatten().tolist())
            expected[t, b] = observation not in seen
            seen.add(observation)
    found = first_visits(leaves, is_first).numpy()
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bool])
def test_fingerprints_of_observations_that_differ_in_one_or_two_numbers_differ(
    dtype: torch.dtype,
) -> None:
    """Of all pairs of places, also of those whose sums are the same: moved and swapped ones."""
    width = 37
    ones = torch.eye(width)
    pairs = [ones[i] + ones[j] for i in range(width) for j in range(i)]
    leaf = torch.stack([torch.zeros(width), *ones, *pairs]).to(dtype)[:, None]
    assert len(fingerprints({"x": leaf}).unique()) == len(leaf)


def test_the_same_numbers_in_other_leaves_are_another_observation() -> None:
    a, b = torch.tensor([[[1, 2]]]), torch.tensor([[[2, 1]]])
    assert not torch.equal(fingerprints({"a": a, "b": b}), fingerprints({"a": b, "b": a}))
    assert torch.equal(fingerprints({"a": a, "b": b}), fingerprints({"b": b, "a": a}))

"""The sum tree draws in proportion, stays exact, never finds a leaf of 0."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sampleforge.replay.sum_tree import SumTree

SIZES = [1, 2, 7, 16, 17, 100, 4096, 4097, 5000, 70_001]
"""Not only powers of anything; the last three have two levels and more."""


def tree_of(leaves: np.ndarray) -> SumTree:
    tree = SumTree(len(leaves))
    tree.set_range(0, leaves)
    return tree


def literal_find(leaves: np.ndarray, at: float) -> int:
    """The definition, one leaf after another."""
    below = 0.0
    for i, leaf in enumerate(leaves):
        below += leaf
        if at < below:
            return i
    raise AssertionError("beyond the total")


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_every_point_finds_its_leaf(size: int) -> None:
    rng = np.random.default_rng(size)
    leaves = rng.integers(0, 5, size).astype(np.float64)  # integers: no rounding
    leaves[rng.integers(size)] = 3.0
    tree = tree_of(leaves)
    assert tree.total == leaves.sum()
    at = np.sort(rng.random(50)) * tree.total
    assert tree.find(at).tolist() == [literal_find(leaves, x) for x in at]
    ends = leaves.cumsum()
    edges = np.concatenate(([0.0], ends[:-1]))[leaves > 0]  # where each leaf begins
    assert tree.find(edges).tolist() == leaves.nonzero()[0].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_a_leaf_of_zero_is_never_found(size: int) -> None:
    rng = np.random.default_rng(size)
    leaves = np.zeros(size)
    held = rng.choice(size, max(1, size // 50), replace=False)
    leaves[held] = rng.random(len(held)) * 10.0 ** rng.integers(-12, 6, len(held))
    tree = tree_of(leaves)
    total = tree.total
    at = [0.0, np.nextafter(total, 0), total, np.nextafter(total, np.inf), total * (1 + 1e-9)]
    points = np.sort(np.concatenate((at, rng.random(2000) * total)))
    assert set(tree.find(points).tolist()) <= set(held.tolist())


def test_a_leaf_of_zero_is_not_found_where_rounding_falls_short_of_a_node() -> None:
    """The sum before a node, as it is found, may be a rounding error more than the point."""
    rng = np.random.default_rng(0)
    leaves = rng.random(1 << 16) ** 3
    leaves[::16] = 0.0  # the first child of each node
    edges = leaves.reshape(-1, 16).sum(1).cumsum()[:-1]
    assert (leaves[tree_of(leaves).find(edges)] > 0).all()


def test_the_total_stays_exact_through_a_million_operations() -> None:
    rng = np.random.default_rng(0)
    tree, leaves = SumTree(5003), np.zeros(5003)
    for i in range(1000):
        values = rng.random(997) * 10.0 ** rng.integers(-8, 8, 997)
        if i % 3:
            indices = rng.integers(0, 5003, 997)
            tree.set(indices, values)
            for index, value in zip(indices, values, strict=True):  # the last of equals holds
                leaves[index] = value
        else:
            start = int(rng.integers(0, 5003 - 997))
            tree.set_range(start, values)
            leaves[start : start + 997] = values
    assert (tree.leaves == leaves).all()
    assert tree.total == pytest.approx(math.fsum(leaves), rel=1e-12)


@pytest.mark.parametrize("size", [5, 1000, 4099])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_are_in_proportion(size: int, alpha: float) -> None:
    rng = np.random.default_rng(size)
    leaves = rng.gamma(0.5, size=size) ** alpha
    leaves[rng.random(size) < 0.2] = 0.0
    leaves[0] = 1.0
    tree = tree_of(leaves)
    count, rounds = 512, 200
    drawn = np.bincount(
        np.concatenate([tree.draw(count, rng) for _ in range(rounds)]), minlength=size
    )
    assert (drawn[leaves == 0] == 0).all()
    expected = leaves / leaves.sum() * count * rounds
    common = expected >= 5
    seen = np.append(drawn[common], drawn[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    chi2 = ((seen - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
    # Mean and standard deviation of chi-square; stratified draws vary less than independent ones.
    freedom = len(seen) - 1
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


def test_of_equal_indices_the_last_value_holds() -> None:
    tree = SumTree(10)
    tree.set(np.array([3, 4, 3, 3]), np.array([1.0, 2.0, 5.0, 0.5]))
    assert tree.leaves[3] == 0.5 and tree.total == 2.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-300])
def test_bad_priorities_are_refused_and_change_nothing(bad: float) -> None:
    tree = tree_of(np.arange(5000.0))
    before = [level.copy() for level in tree._levels]
    with pytest.raises(ValueError, match="1 of 3 priorities are negative or not finite"):
        tree.set(np.array([1, 2, 3]), np.array([1.0, bad, 2.0]))
    with pytest.raises(ValueError, match="not finite"):
        tree.set_range(10, np.array([1.0, 2.0, bad]))
    assert all((a == b).all() for a, b in zip(before, tree._levels, strict=True))


def test_strata_hold_one_draw_each() -> None:
    tree = tree_of(np.ones(64))
    for _ in range(20):
        assert tree.draw(64, np.random.default_rng()).tolist() == list(range(64))

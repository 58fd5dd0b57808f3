"""Opponents are drawn by the formulas of the papers, and the pool covers the whole training."""

from itertools import pairwise

import numpy as np
import pytest

from sampleforge.populations.opponents import (
    DRAW_RULES,
    expected_win_rate,
    probabilities,
    to_remove,
    weights,
)

SEEDS = range(50)


def literal(win_rates, rule, power):
    """f(w_i) / sum_j f(w_j), written out as the paper has it."""
    values = []
    for w in win_rates:
        values.append({"uniform": 1.0, "hard": (1 - w) ** power, "even": w * (1 - w)}[rule])
    return [value / sum(values) for value in values]


def random_case(seed):
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.01, 0.99, rng.integers(1, 20)).tolist()
    return rates, float(rng.uniform(0.2, 4.0)), float(rng.random()), rng


@pytest.mark.parametrize("rule", DRAW_RULES)
def test_weights_are_those_of_the_literal_formula(rule):
    for seed in SEEDS:
        rates, power, _, _ = random_case(seed)
        assert weights(rates, rule, power) == pytest.approx(literal(rates, rule, power))


@pytest.mark.parametrize("rule", DRAW_RULES)
def test_the_newest_weights_have_their_probability_and_the_window_bounds_the_rest(rule):
    for seed in SEEDS:
        rates, power, latest, rng = random_case(seed)
        window = int(rng.integers(1, 25))
        found = probabilities(rates, rule, latest=latest, power=power, window=window)
        inside = rates[-window:]
        expected = [0.0] * (len(rates) - len(inside))
        expected += [(1 - latest) * p for p in literal(inside, rule, power)]
        assert found == pytest.approx([*expected, latest]) and found.sum() == pytest.approx(1.0)


def test_without_a_snapshot_the_newest_weights_are_the_opponent():
    assert probabilities([], "hard", latest=0.0).tolist() == [1.0]


def test_hard_snapshots_are_preferred_by_one_rule_and_even_ones_by_the_other():
    rates = [0.1, 0.5, 0.9]
    hard, even = weights(rates, "hard"), weights(rates, "even")
    assert hard[0] > hard[1] > hard[2] and even[1] > even[0] == pytest.approx(even[2])


@pytest.mark.parametrize("rule", DRAW_RULES)
def test_snapshots_that_always_lose_are_drawn_alike(rule):
    assert weights([1.0, 1.0, 1.0, 1.0], rule) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(
    ("rates", "more"),
    [([1.2], {}), ([0.5], {"latest": 1.5}), ([0.5], {"window": 0})],
)
def test_wrong_values_are_refused(rates, more):
    with pytest.raises(ValueError):
        probabilities(rates, "hard", **more)


@pytest.mark.parametrize("size", [3, 5, 10, 16])
def test_the_pool_keeps_the_oldest_and_the_newest_and_covers_the_time_between_them(size):
    kept: list[int] = []
    for taken in range(0, 400):
        kept.append(taken * 1000)
        if len(kept) > size:
            kept.pop(to_remove(kept))
        assert kept[0] == 0 and kept[-1] == taken * 1000
        if taken >= size:
            gaps = [later - earlier for earlier, later in pairwise(kept)]
            assert max(gaps) <= 2.0 * taken * 1000 / (size - 2), kept


def test_a_pool_of_one_keeps_the_newest():
    assert to_remove([10, 20]) == 0
    with pytest.raises(ValueError):
        to_remove([10])


def test_a_snapshot_without_games_counts_as_an_even_one():
    assert expected_win_rate(0, 0) == 0.5
    assert expected_win_rate(100, 100) < 1.0
    assert expected_win_rate(300, 400) == pytest.approx(0.75, abs=0.005)

"""The opponents of self-play, the results against them, and the ratings that follow."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from sampleforge.populations.league import (
    LEARNER,
    DrawRule,
    League,
    LeagueRules,
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


@pytest.mark.parametrize("rule", get_args(DrawRule))
def test_weights_are_those_of_the_literal_formula(rule):
    for seed in SEEDS:
        rates, power, _, _ = random_case(seed)
        assert weights(rates, rule, power) == pytest.approx(literal(rates, rule, power))


@pytest.mark.parametrize("rule", get_args(DrawRule))
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


@pytest.mark.parametrize("rule", get_args(DrawRule))
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


def test_the_middle_one_of_three_does_not_stay_for_ever():
    kept: list[int] = []
    middles = set()
    for taken in range(1000):
        kept.append(taken)
        if len(kept) > 3:
            kept.pop(to_remove(kept))
            assert kept[1] >= taken / 3 - 1
            middles.add(kept[1])
    assert len(middles) > 4, "a new one whenever the training is three times as long"


def test_a_pool_of_one_keeps_the_newest():
    assert to_remove([10, 20]) == 0
    with pytest.raises(ValueError):
        to_remove([10])


def test_a_snapshot_without_games_counts_as_an_even_one():
    assert expected_win_rate(0, 0) == 0.5
    assert expected_win_rate(100, 100) < 1.0
    assert expected_win_rate(300, 400) == pytest.approx(0.75, abs=0.005)


pytest.importorskip("openskill")


def played(rules=None, snapshots=12, games=50, seed=0):
    """A league whose policy beats snapshots the more often, the older they are."""
    league, rng = League(rules or LeagueRules(size=5)), np.random.default_rng(seed)
    for taken in range(snapshots):
        league.take(1000 * taken)
        for _ in range(games):
            opponent = league.snapshots[rng.integers(len(league.snapshots))]
            age = taken + 1 - opponent.number
            league.add(opponent.number, float(rng.random() < 1.0 / (1.0 + 10.0 ** (-age / 4.0))))
    return league


def test_snapshots_of_the_pool_have_different_entries_and_cover_the_training():
    league = played()
    assert sorted(snapshot.entry for snapshot in league.snapshots) == [0, 1, 2, 3, 4]
    numbers = [snapshot.number for snapshot in league.snapshots]
    assert numbers[0] == 0 and numbers[-1] == 11 and numbers == sorted(numbers)
    assert league.results.players == [LEARNER, *map(str, numbers)]


def test_a_snapshot_takes_the_entry_of_the_one_that_leaves():
    league = League(LeagueRules(size=2))
    first, second = league.take(0), league.take(100)
    assert [first.entry, second.entry] == [0, 1]
    taken = league.take(200)
    (left,) = [each for each in (first, second) if each not in league.snapshots]
    assert taken in league.snapshots and taken.entry == left.entry


def test_without_snapshots_the_newest_weights_are_the_opponent():
    assert League(LeagueRules(size=3, latest=0.0)).probabilities().tolist() == [0, 0, 0, 1]


def test_probabilities_belong_to_the_entries_of_the_pool():
    league = played(LeagueRules(size=5, rule="hard", latest=0.25, power=1.0))
    found = league.probabilities()
    assert found.sum() == pytest.approx(1.0) and found[-1] == 0.25
    hard = [1.0 - league.win_rate(snapshot) for snapshot in league.snapshots]
    for snapshot, weight in zip(league.snapshots, hard, strict=True):
        assert found[snapshot.entry] == pytest.approx(0.75 * weight / sum(hard))


def test_win_rates_follow_the_last_games():
    league = League(LeagueRules())
    league.take(0)
    for score in [0.0] * 1000 + [1.0] * 500:
        league.add(0, score)
    assert league.win_rate(league.snapshots[0]) > 0.95 and league.games == 1500


def test_a_snapshot_begins_with_the_results_of_the_policy():
    league = League(LeagueRules())
    league.take(0)
    for score in [0.0] * 1000 + [1.0] * 500:
        league.add(0, score)
    league.take(100)
    points, games = league.results.of("1", "0")
    assert league.results.of(LEARNER, "0") == (points / 2, games / 2) and games > 90
    assert league.results.of("1", LEARNER) == (0.0, 0.0)


def test_games_against_a_snapshot_that_has_left_are_not_counted():
    league = played()
    before = league.state()
    gone = next(n for n in range(12) if str(n) not in league.results.players)
    league.add(gone, 1.0)
    assert league.state() == before


@pytest.mark.long
def test_ratings_rise_from_snapshot_to_snapshot():
    league = played(LeagueRules(size=6), snapshots=20, games=400)
    fitted = league.fitted().ratings
    names = league.results.players
    assert fitted[names.index("0")] == 1200.0 and (np.diff(fitted[1:]) > 0).all()
    assert league.rating.elo > league.ratings["0"].elo + 100


def test_a_league_continues_from_its_state():
    whole, part = played(snapshots=8), played(snapshots=8)
    again = League(LeagueRules(size=5))
    again.load(json.loads(json.dumps(part.state())))
    for league in (whole, again):
        league.take(9000)
        league.add(league.snapshots[0].number, 0.5)
    assert whole.state() == again.state() and whole.summary() == again.summary()


def test_the_metrics_of_a_report():
    scalars = played().scalars()
    assert scalars["self_play_snapshots"] == 5 and scalars["self_play_games"] > 500
    assert 0.0 < scalars["self_play_win_rate_min"] < scalars["self_play_win_rate_mean"] < 1.0
    assert scalars["self_play_elo"] > 1200

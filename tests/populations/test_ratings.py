"""Ratings recover known strengths, and the online ones follow a player who improves."""

import math

import numpy as np
import pytest

from sampleforge.populations.ratings import Results, fit_elo, score_of

STRENGTHS = {"a": 800.0, "b": 1000.0, "c": 1150.0, "d": 1300.0, "e": 1450.0, "f": 1700.0}
GAMES = 2000


def chance(first, second):
    """The literal formula of Elo's scale."""
    return 1.0 / (1.0 + 10.0 ** ((second - first) / 400.0))


def play(strengths, games, seed, draws=0.0):
    """All pairs play ``games`` games, ``draws`` of which have no winner where both are equal."""
    rng = np.random.default_rng(seed)
    results, names = Results(list(strengths)), list(strengths)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            p = chance(strengths[first], strengths[second])
            tie = draws * 4.0 * p * (1.0 - p)
            outcomes = rng.multinomial(games, [p - tie / 2, tie, 1.0 - p - tie / 2])
            for score, count in zip((1.0, 0.5, 0.0), outcomes.tolist(), strict=True):
                results.add(first, second, score, count)
    return results


@pytest.mark.parametrize("draws", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(10))
def test_the_fit_recovers_known_strengths_within_25_elo(seed, draws):
    mean = float(np.mean(list(STRENGTHS.values())))
    found = fit_elo(play(STRENGTHS, GAMES, seed, draws), anchor=mean)
    off = found.ratings - np.array(list(STRENGTHS.values()))
    assert np.abs(off).max() < 25.0, off


def test_the_errors_of_the_fit_are_those_of_its_ratings():
    """Standardised errors over 200 tournaments have a standard deviation of about 1."""
    mean = float(np.mean(list(STRENGTHS.values())))
    true, standardised = np.array(list(STRENGTHS.values())), []
    for seed in range(200):
        found = fit_elo(play(STRENGTHS, 200, seed), anchor=mean)
        standardised.append((found.ratings - true) / found.errors)
    assert 0.9 < np.std(standardised) < 1.1


def test_a_player_can_be_the_anchor():
    results = play(STRENGTHS, GAMES, 0)
    found = fit_elo(results, anchor=1000.0, anchored="b")
    assert found.ratings[1] == 1000.0 and found.errors[1] == pytest.approx(0.0, abs=1e-6)
    centred = fit_elo(results)
    assert centred.ratings.mean() == pytest.approx(1200.0)
    assert np.diff(found.ratings) == pytest.approx(np.diff(centred.ratings))


def test_the_ratings_of_two_players_are_those_of_their_win_rate():
    results = Results(["a", "b"])
    results.add("a", "b", 1.0, 7500)
    results.add("a", "b", 0.0, 2500)
    found = fit_elo(results).ratings
    assert found[0] - found[1] == pytest.approx(400.0 * math.log10(3.0), abs=0.5)


def test_a_player_that_has_won_or_lost_everything_has_a_finite_rating():
    results = Results(["a", "b", "c"])
    results.add("a", "b", 1.0, 50)
    found = fit_elo(results)
    assert np.isfinite(found.ratings).all() and np.isfinite(found.errors).all()
    assert found.ratings[0] > found.ratings[2] > found.ratings[1]


def test_the_matrix_counts_a_draw_as_half_a_win_of_each():
    results = Results(["a", "b", "c"])
    results.add("a", "b", 1.0, 3)
    results.add("b", "a", 1.0)
    results.add("a", "b", 0.5, 4)
    assert results.games[0, 1] == results.games[1, 0] == 8
    assert results.win_rates[0, 1] == 5 / 8 and results.win_rates[1, 0] == 3 / 8
    assert np.isnan(results.win_rates[0, 2]) and np.isnan(results.win_rates[0, 0])
    assert results.of("b", "a") == (3.0, 8.0)
    again = Results.from_state(results.state())
    again.add_player("d")
    assert again.win_rates[0, 1] == 5 / 8 and again.players == ["a", "b", "c", "d"]


def test_a_player_may_begin_with_the_results_of_another_one():
    results = Results(["a", "b", "c"])
    results.add("a", "b", 1.0, 6)
    results.add("c", "a", 1.0, 2)
    results.add_player("d", like="a")
    assert results.of("d", "b") == (6.0, 6.0) and results.of("d", "c") == (0.0, 2.0)
    assert results.of("d", "a") == (0.0, 0.0)
    results.remove_player("a")
    assert results.players == ["b", "c", "d"] and results.of("c", "d") == (2.0, 2.0)


def test_faded_games_count_less():
    results = Results(["a", "b"])
    results.add("a", "b", 1.0, 10)
    results.fade("b", "a", 0.5)
    assert results.of("a", "b") == (5.0, 5.0)


def test_players_are_not_added_twice_and_do_not_play_against_themselves():
    results = Results(["a"])
    with pytest.raises(ValueError):
        results.add_player("a")
    with pytest.raises(ValueError):
        results.add("a", "a", 1.0)


def online_ratings():
    pytest.importorskip("openskill")
    from sampleforge.populations.ratings import OnlineRatings

    ratings = OnlineRatings()
    for player in ("learner", "fixed"):
        ratings.add_player(player)
    return ratings


def test_online_ratings_follow_a_player_who_improves():
    ratings, rng = online_ratings(), np.random.default_rng(0)
    found = []
    for strength in (1000.0, 1600.0):
        for _ in range(1000):
            ratings.add("learner", "fixed", float(rng.random() < chance(strength, 1300.0)))
        found.append(ratings["learner"].elo - ratings["fixed"].elo)
    assert found[0] == pytest.approx(-300.0, abs=150.0)
    assert found[1] == pytest.approx(300.0, abs=150.0)


def test_a_copy_of_a_player_has_its_rating():
    ratings = online_ratings()
    assert ratings["learner"].elo == 1200.0
    ratings.add("learner", "fixed", 1.0)
    ratings.add_player("copy", like="learner")
    assert ratings["copy"] == ratings["learner"] and ratings["copy"].elo > 1200.0
    ratings.remove("learner")
    assert set(ratings.state()) == {"copy", "fixed"}


def test_online_ratings_continue_from_their_state():
    one, other = online_ratings(), online_ratings()
    one.add("learner", "fixed", 1.0)
    other.load(one.state())
    for ratings in (one, other):
        ratings.add("learner", "fixed", 0.5)
    assert one.state() == other.state()


@pytest.mark.parametrize(
    ("ret", "opponent", "score"), [(1.0, -1.0, 1.0), (-1.0, 1.0, 0.0), (0.3, 0.1 + 0.2, 0.5)]
)
def test_the_higher_return_wins(ret, opponent, score):
    assert score_of(ret, opponent) == score

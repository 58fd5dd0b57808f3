"""The pool of self-play: what it keeps, whom it draws, and what it knows of them."""

import json

import numpy as np
import pytest

from sampleforge.populations.league import LEARNER, League, LeagueRules

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
    assert [league.take(0).taken.entry, league.take(100).taken.entry] == [0, 1]
    change = league.take(200)
    assert change.removed is not None and change.taken.entry == change.removed.entry


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

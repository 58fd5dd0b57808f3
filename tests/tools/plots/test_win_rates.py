"""The matrix of win rates is drawn for two players and for a hundred."""

import numpy as np
import pytest

from sampleforge.tools.plots.win_rates import WinRates, draw_win_rates


def some_rates(count, seed=0):
    rng = np.random.default_rng(seed)
    elo = np.sort(rng.normal(1200.0, 200.0, count))
    chance = 1.0 / (1.0 + 10.0 ** ((elo[None] - elo[:, None]) / 400.0))
    games = np.full((count, count), 100)
    np.fill_diagonal(games, 0)
    games[0, -1] = games[-1, 0] = 0 if count > 2 else 100
    rates = np.where(games > 0, chance, np.nan)
    names = [f"player_{i}" for i in range(count)]
    return WinRates("Duel, 100 games a pair", names, rates, games, elo, np.full(count, 20.0))


@pytest.mark.parametrize("count", [2, 6, 16, 100])
def test_all_players_are_drawn(tmp_path, count):
    pytest.importorskip("matplotlib")
    out = tmp_path / "rates.svg"
    draw_win_rates(some_rates(count), out)
    text = out.read_text()
    assert "player_0" in text and "Elo (95% interval)" in text


def test_the_strongest_player_comes_first_in_the_order_of_ratings():
    ordered = some_rates(5).by_rating()
    assert list(ordered.players) == [f"player_{i}" for i in (4, 3, 2, 1, 0)]
    assert (np.diff(ordered.elo) < 0).all() and np.isnan(ordered.rates[0, -1])
    assert ordered.rates[0, 1] > 0.5

"""PaddleDuel-v0: its rules are the same from both seats, and skill decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import own_outputs

Play = Callable[[Any, np.random.Generator], Any]


def randomly(obs: Any, rng: np.random.Generator) -> Any:
    return rng.integers(3, size=len(obs))


def follow(obs: Any, rng: np.random.Generator) -> Any:
    """Keep the paddle at the height of the ball."""
    away = obs[:, 3] - obs[:, 0]
    return np.where(np.abs(away) < 0.05, 0, np.where(away > 0, 1, 2))


def duel(left: Play, right: Play, games: int, seed: int = 0) -> tuple[list[float], list[int]]:
    """Returns of the left agent, and lengths, of the first ``games`` games."""
    vector = make_vector(
        EnvConfig(env="PaddleDuel-v0", decorrelate=False), 64, range(seed, seed + 64)
    )
    rng = np.random.default_rng(seed)
    seats = [(seat, own_outputs(seat.spec, 64)) for seat in vector.seats]
    for seat, out in seats:
        seat.reset(out.obs)
    returns: list[float] = []
    lengths: list[int] = []
    while len(returns) < games:
        for (seat, out), play in zip(seats, (left, right), strict=True):
            seat.send({"action": play(out.obs["obs"], rng)})
        both = [seat.recv(out) for seat, out in seats]
        for own, other in zip(*both, strict=True):
            assert own.row == other.row and own.ret == -other.ret, "zero-sum"
            returns.append(own.ret)
            lengths.append(own.length)
    return returns[:games], lengths[:games]


def test_equal_players_win_equally_often_and_the_better_one_wins() -> None:
    assert abs(np.mean(duel(randomly, randomly, 2000)[0])) < 0.08
    assert np.mean(duel(follow, randomly, 500)[0]) > 0.8
    assert np.mean(duel(randomly, follow, 500)[0]) < -0.8


def test_good_players_play_longer_but_each_game_ends() -> None:
    random_lengths, good_lengths = (duel(play, play, 500)[1] for play in (randomly, follow))
    assert np.mean(good_lengths) > 1.5 * np.mean(random_lengths)
    returns, lengths = duel(follow, follow, 500)
    assert np.mean(np.array(returns) == 0) < 0.1 and max(lengths) <= 400


def test_both_seats_see_the_same_game_mirrored() -> None:
    vector = make_vector(EnvConfig(env="PaddleDuel-v0"), 8, range(8))
    left, right = (own_outputs(seat.spec, 8) for seat in vector.seats)
    rng = np.random.default_rng(1)
    for seat, out in zip(vector.seats, (left, right), strict=True):
        seat.reset(out.obs)
    for _ in range(100):
        for seat in vector.seats:
            seat.send({"action": rng.integers(3, size=8)})
        for seat, out in zip(vector.seats, (left, right), strict=True):
            seat.recv(out)
        a, b = left.obs["obs"], right.obs["obs"]
        np.testing.assert_array_equal(a[:, [0, 1, 3, 5]], b[:, [1, 0, 3, 5]])
        np.testing.assert_array_equal(a[:, [2, 4]], -b[:, [2, 4]])
        assert np.abs(a).max() <= 2


def test_the_same_seeds_give_the_same_games() -> None:
    assert duel(follow, randomly, 100, seed=5) == duel(follow, randomly, 100, seed=5)
    assert duel(follow, randomly, 100, seed=5) != duel(follow, randomly, 100, seed=6)

"""Win rates and ratings of players: policies of a tournament, and snapshots of self-play.

There are two ratings, for two purposes, and both are shown on the Elo scale, on which a player with
400 points more than another scores 10 times as many points against it:

* `fit_elo` finds the strengths under which all results together are most likely (Bradley-Terry,
  penalised by a weak prior). It is for players that do not change: the order of the games does
  not matter, and its error falls with the square root of their number.
* `OnlineRatings` moves two ratings after each game, by the Bayesian rules of openskill
  (Weng and Lin 2011, their alternative to TrueSkill). It is for a policy that learns while it
  plays, for which all games together would average over weak and strong versions.

The online ratings alone do not recover the strengths of fixed players to 25 Elo, because they must
stay ready to move; benchmarks/results/populations.md has both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError

Floats = npt.NDArray[np.float64]

ELO_PER_NAT = 400.0 / math.log(10.0)
"""Elo points per unit of the logistic scale: 174."""
ANCHOR = 1200.0
"""Elo of an average player, as in ML-Agents."""
PRIOR_SD = 400.0
"""Standard deviation in Elo of a strength before any game. It keeps the rating of a player that has
won all of its games finite; after 100 games against players of similar strength, it moves a rating
by less than its standard error."""


class Results:
    """The results of games between two players each.

    ``points`` float64 [N, N]: the points of the row's player against the column's, where a win is a
    point and a draw half a point for each.
    """

    def __init__(self, players: Sequence[str] = ()) -> None:
        self.players: list[str] = []
        self.points: Floats = np.zeros((0, 0))
        for player in players:
            self.add_player(player)

    def add_player(self, player: str, like: str | None = None) -> None:
        """Add a player without games, or with the results of the player ``like`` against all
        others. Raises ValueError if it is there already."""
        if player in self.players:
            raise ValueError(f"{player} is there already")
        self.players.append(player)
        self.points = np.pad(self.points, (0, 1))
        if like is not None:
            index = self.players.index(like)
            self.points[-1, :-1] = self.points[index, :-1]
            self.points[:-1, -1] = self.points[:-1, index]

    def remove_player(self, player: str) -> None:
        """Forget a player and its games."""
        index = self.players.index(player)
        self.players.pop(index)
        self.points = np.delete(np.delete(self.points, index, 0), index, 1)

    def add(self, first: str, second: str, score: float, games: float = 1.0) -> None:
        """Add ``games`` games of the same result: ``score`` is 1 if ``first`` has won, 0 if
        ``second`` has, 0.5 for a draw."""
        i, j = self._pair(first, second)
        self.points[i, j] += score * games
        self.points[j, i] += (1.0 - score) * games

    def fade(self, first: str, second: str, factor: float) -> None:
        """Multiply the games between two players by ``factor``, so that later ones count more."""
        i, j = self._pair(first, second)
        self.points[i, j] *= factor
        self.points[j, i] *= factor

    def of(self, first: str, second: str) -> tuple[float, float]:
        """Return the points of ``first`` against ``second``, and the number of their games."""
        i, j = self._pair(first, second)
        points = float(self.points[i, j])
        return points, points + float(self.points[j, i])

    def _pair(self, first: str, second: str) -> tuple[int, int]:
        if first == second:
            raise ValueError(f"{first} cannot play against itself")
        return self.players.index(first), self.players.index(second)

    @property
    def games(self) -> Floats:
        """The number of games [N, N] of each pair."""
        return self.points + self.points.T

    @property
    def win_rates(self) -> Floats:
        """The points per game [N, N] of the row's player against the column's, NaN where they have
        not played."""
        games = self.games
        rates = np.full(games.shape, math.nan)
        np.divide(self.points, games, out=rates, where=games > 0)
        return rates

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        return {"players": list(self.players), "points": self.points.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Results:
        """Return the results that `state` has described."""
        results = cls(state["players"])
        count = len(results.players)
        results.points = np.asarray(state["points"], np.float64).reshape(count, count)
        return results


class Elo(NamedTuple):
    """Ratings [N] on the Elo scale, and their standard errors [N], in the players' order."""

    ratings: Floats
    errors: Floats


def fit_elo(results: Results, anchor: float = ANCHOR, anchored: str | None = None) -> Elo:
    """Return the ratings under which the results are most likely.

    Player i scores against player j with probability 1 / (1 + 10^((R_j - R_i) / 400)); a draw is
    half a win and half a loss. A normal prior of `PRIOR_SD` keeps ratings finite. ``anchor``: the
    mean of all ratings, or the rating of the player ``anchored``. The errors are those of the
    differences to the anchor.
    """
    scores, games = results.points, results.games
    count = len(results.players)
    precision = (ELO_PER_NAT / PRIOR_SD) ** 2
    strength = np.zeros(count)
    level = _log_posterior(strength, scores, precision)
    for _ in range(100):
        expected = _logistic(strength[:, None] - strength[None, :])
        gradient = (scores - games * expected).sum(axis=1) - precision * strength
        information = _information(games, expected, precision)
        step = np.linalg.solve(information, gradient)
        # The function is concave: a step that is too long is halved, and the direction is right.
        while (after := _log_posterior(strength + step, scores, precision)) < level - 1e-12 * abs(
            level
        ):
            step /= 2.0
        strength, level = strength + step, after
        if np.abs(step).max(initial=0.0) < 1e-9:
            break
    expected = _logistic(strength[:, None] - strength[None, :])
    covariance = np.linalg.inv(_information(games, expected, precision))
    to_anchor = np.eye(count) - (
        np.full((count, count), 1.0 / count)
        if anchored is None
        else np.eye(count)[[results.players.index(anchored)] * count]
    )
    variance = np.diag(to_anchor @ covariance @ to_anchor.T)
    return Elo(
        anchor + ELO_PER_NAT * (to_anchor @ strength), ELO_PER_NAT * np.sqrt(variance.clip(0.0))
    )


def _log_posterior(strength: Floats, scores: Floats, precision: float) -> float:
    difference = strength[:, None] - strength[None, :]
    likelihood = -(scores * np.logaddexp(0.0, -difference)).sum()
    return float(likelihood - 0.5 * precision * (strength**2).sum())


def _information(games: Floats, expected: Floats, precision: float) -> Floats:
    """Return minus the second derivatives [N, N] of the log posterior."""
    between = games * expected * (1.0 - expected)
    return np.diag(between.sum(axis=1) + precision) - between


def _logistic(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


class Rating(NamedTuple):
    """A rating on the Elo scale, and its standard deviation."""

    elo: float
    sd: float


class OnlineRatings:
    """Ratings that follow players who change: each game moves those of both.

    The rule is openskill's ``BradleyTerryFull`` with its default constants, among them the ``tau``
    by which the uncertainty grows before every game, so that a rating can always follow. A change
    of 1 of its mu is shown as ``400 / ln(10) / (sqrt(2) beta)`` = 29.5 Elo: with this factor its
    chance to win is the one of the Elo scale, once the ratings are certain.
    """

    def __init__(self) -> None:
        """Raises ConfigError if openskill is missing."""
        try:
            from openskill.models import BradleyTerryFull
        except ModuleNotFoundError as error:
            raise ConfigError(
                "ratings need openskill, which is not installed: "
                'pip install "sampleforge[populations]"'
            ) from error
        self._model = BradleyTerryFull()
        self._scale = ELO_PER_NAT / (math.sqrt(2.0) * self._model.beta)
        self._ratings: dict[str, Any] = {}

    def add_player(self, player: str, like: str | None = None) -> None:
        """Add a player without games: with the rating of the player ``like``, whose weights it has,
        or with `ANCHOR`."""
        rating = self._model.rating()
        if like is not None:
            rating = self._model.rating(mu=self._ratings[like].mu, sigma=self._ratings[like].sigma)
        self._ratings[player] = rating

    def add(self, first: str, second: str, score: float) -> None:
        """Take one game: ``score`` is 1 if ``first`` has won, 0 if ``second`` has, 0.5 for a
        draw."""
        teams = [[self._ratings[first]], [self._ratings[second]]]
        (self._ratings[first],), (self._ratings[second],) = self._model.rate(
            teams, scores=[score, 1.0 - score]
        )

    def __getitem__(self, player: str) -> Rating:
        """Return the rating of a player."""
        rating = self._ratings[player]
        elo = ANCHOR + self._scale * (rating.mu - self._model.mu)
        return Rating(elo, self._scale * rating.sigma)

    def remove(self, player: str) -> None:
        """Forget a player."""
        del self._ratings[player]

    def state(self) -> dict[str, list[float]]:
        """Return the plain values that a checkpoint stores: mu and sigma of each player."""
        return {player: [rating.mu, rating.sigma] for player, rating in self._ratings.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Take over what `state` has returned."""
        self._ratings = {
            player: self._model.rating(mu=mu, sigma=sigma) for player, (mu, sigma) in state.items()
        }


def score_of(ret: float, opponent_ret: float) -> float:
    """Return the score of a game: 1 if ``ret`` is the higher return, 0 if ``opponent_ret`` is, 0.5
    if they are equal, but for the rounding of sums of rewards."""
    if math.isclose(ret, opponent_ret, rel_tol=1e-6, abs_tol=1e-9):
        return 0.5
    return 1.0 if ret > opponent_ret else 0.0

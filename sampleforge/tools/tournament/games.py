"""Games between policies on the rows of a multi-agent environment: which policy plays which, the
results, and the ratings that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from sampleforge.env.games import FinishedGame, Games
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.populations.ratings import OnlineRatings, Results, fit_elo, score_of
from sampleforge.tools.plots.win_rates import WinRates
from sampleforge.workers.episode_player import EpisodePolicy

Array = np.ndarray[Any, Any]
LIMIT = 27_000
"""Env steps after which a game is cut if the environment has no limit, as in `sampleforge eval`."""


class Game(NamedTuple):
    """One episode between two players, given by their indices. ``first`` has the seats 0, 2, ...,
    ``second`` the seats 1, 3, ... of the environment."""

    first: int
    second: int


class PlayedGame(NamedTuple):
    """A game and its result: ``score`` is 1 if ``first`` has won, 0 if ``second`` has, 0.5 for a
    draw."""

    game: Game
    score: float


def round_robin(players: int, episodes: int) -> Iterator[Game]:
    """Yield ``episodes`` games of every pair of ``players`` players, one pair after the other, so
    that few policies play at the same time. The players of a pair change sides from one game to
    the next."""
    for i in range(players):
        for j in range(i + 1, players):
            for number in range(episodes):
                yield Game(i, j) if number % 2 == 0 else Game(j, i)


class GamePlayer:
    """Plays games on the rows of a multi-agent environment, one vector step at a time.

    ``envs``: the first seat of rows that have not been reset. All seats must have the same spaces,
    and the ``policies``, one per player, those spaces. Each row takes the next of ``games`` when
    its episode is over, so that every game is played to its end, long or short; one with a dropped
    step is played again. The higher mean return wins, over the seats of a player whose agents took
    part in the game (0 if none did). Actions are drawn from the policies if ``stochastic``, or the
    most likely ones. A game is cut after the environment's limit, or `LIMIT` steps if it has none.
    """

    def __init__(
        self,
        envs: EnvVector,
        policies: Sequence[EpisodePolicy],
        games: Iterator[Game],
        *,
        stochastic: bool,
        seed: int,
    ) -> None:
        self._seats = envs.seats
        rows, seats = envs.num_rows, len(self._seats)
        if envs.spec.max_episode_steps is None and not envs.limit_episodes(LIMIT):
            raise ValueError(f"{envs.spec.env_id} has no time limit, and its rows cannot be cut")
        self._policies = policies
        self._states = [policy.initial_state(seats * rows) for policy in self._policies]
        self._stochastic = stochastic
        self._generator = torch.Generator().manual_seed(seed)
        self._out = [own_outputs(seat.spec, rows) for seat in self._seats]
        self._actions: list[dict[str, Array]] = [{} for _ in self._seats]
        self._games = games
        self._game: list[Game | None] = [None] * rows
        self._player = np.zeros((seats, rows), np.int64)
        """The player at each seat of each row."""
        self._finished = Games(self._seats)
        self._open = 0
        self.played: list[PlayedGame] = []
        for row in range(rows):
            self._next_game(row)
        for seat, out in zip(self._seats, self._out, strict=True):
            out.first.fill(True)
            seat.reset(out.obs)

    @property
    def done(self) -> bool:
        """Whether all games have been played."""
        return self._open == 0

    def _next_game(self, row: int) -> None:
        """Give a row the next game. A row without one continues; its results are not counted."""
        game = self._game[row] = next(self._games, None)
        if game is not None:
            self._open += 1
            self._player[0::2, row], self._player[1::2, row] = game.first, game.second

    def step(self) -> None:
        """Take one step of every row."""
        for player in np.unique(self._player).tolist():
            self._act(player)
        for seat, actions in zip(self._seats, self._actions, strict=True):
            seat.send(actions)
        ended = [seat.recv(out) for seat, out in zip(self._seats, self._out, strict=True)]
        for game in self._finished.step(self._out, ended):
            self._end(game)

    def _act(self, player: int) -> None:
        """Compute the actions of one player at all of its seats."""
        rows = [np.flatnonzero(seat == player) for seat in self._player]
        obs = {
            name: np.concatenate([out.obs[name][r] for out, r in zip(self._out, rows, strict=True)])
            for name in self._out[0].obs
        }
        first = np.concatenate([out.first[r] for out, r in zip(self._out, rows, strict=True)])
        at = np.concatenate([r + i * self._player.shape[1] for i, r in enumerate(rows)])
        actions, state = self._policies[player].act(
            obs,
            self._states[player][at],
            first,
            stochastic=self._stochastic,
            generator=self._generator,
        )
        self._states[player][at] = state
        parts = np.cumsum([len(r) for r in rows])[:-1]
        for name, leaf in actions.items():
            for own, r, part in zip(self._actions, rows, np.split(leaf, parts), strict=True):
                if name not in own:
                    own[name] = np.zeros((self._player.shape[1], *leaf.shape[1:]), leaf.dtype)
                own[name][r] = part

    def _end(self, finished: FinishedGame) -> None:
        """Take the result of the game that has ended in a row, and give the row the next one."""
        game = self._game[finished.row]
        if game is not None:
            seats = range(len(self._seats))
            sides = finished.mean(seats[0::2]), finished.mean(seats[1::2])
            first, second = (0.0 if mean is None else mean for mean in sides)
            self.played.append(PlayedGame(game, score_of(first, second)))
            self._open -= 1
        self._next_game(finished.row)


class Standings:
    """The results of a tournament on the environment ``env``, and the ratings of its players."""

    def __init__(self, env: str, players: Sequence[str]) -> None:
        """Raises ConfigError if openskill is missing."""
        self.env = env
        self.results = Results(players)
        self._online = OnlineRatings()
        for player in players:
            self._online.add_player(player)

    def add(self, played: PlayedGame) -> None:
        """Take the result of one game."""
        players, game = self.results.players, played.game
        first, second = players[game.first], players[game.second]
        self.results.add(first, second, played.score)
        self._online.add(first, second, played.score)

    def plain(self) -> dict[str, Any]:
        """Return the values that `sampleforge tournament` prints: the players in the order of their
        ratings, these with their standard errors, openskill's mu and sigma, the score of each
        player per game, and the matrix of win rates, by player (without those that have not
        played)."""
        results, fitted = self.results, fit_elo(self.results)
        order = np.argsort(-fitted.ratings, kind="stable").tolist()
        names = [results.players[i] for i in order]
        games, rates = results.games, results.win_rates
        online = self._online.state()
        return {
            "games": round(games.sum() / 2),
            "players": names,
            "elo": {results.players[i]: float(fitted.ratings[i]) for i in order},
            "elo_error": {results.players[i]: float(fitted.errors[i]) for i in order},
            "openskill": {
                name: dict(zip(("mu", "sigma"), online[name], strict=True)) for name in names
            },
            "win_rate": {
                results.players[i]: float(results.points[i].sum() / games[i].sum()) for i in order
            },
            "win_rates": {
                results.players[i]: {
                    results.players[j]: float(rates[i, j]) for j in order if games[i, j]
                }
                for i in order
            },
        }

    def drawn(self) -> WinRates:
        """Return what `draw_win_rates` draws, the highest rating first."""
        results, fitted = self.results, fit_elo(self.results)
        most = int(results.games.max(initial=0))
        return WinRates(
            f"{self.env}, {most:,} games a pair",
            results.players,
            results.win_rates,
            results.games,
            fitted.ratings,
            fitted.errors,
        ).by_rating()

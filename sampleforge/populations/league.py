"""The bookkeeping of self-play: the snapshots in the pool, the results against them, ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.populations.opponents import (
    DrawRule,
    expected_win_rate,
    probabilities,
    to_remove,
)
from sampleforge.populations.ratings import Elo, OnlineRatings, Rating, Results, fit_elo

LEARNER = "now"
"""The player that learns, in the results."""
MEMORY = 100.0
"""Games against a snapshot of which the results consist: earlier ones fade exponentially, because
the policy that plays them learns meanwhile."""
FADE = 0.5
"""Factor by which all games of the policy fade when a snapshot is taken: also those against
snapshots that it rarely plays."""

RATED = 250
"""Games after a snapshot from which the ratings follow fewer and fewer games: of the n-th game on,
every (n / RATED)-th. A rating takes much longer than an episode of a fast game, in which there can
be thousands of games per second."""


@dataclass(frozen=True)
class LeagueRules:
    """Which snapshots the pool keeps, and how opponents are drawn from it; see
    `sampleforge.populations.opponents`. ``size``: number of snapshots that the pool holds."""

    rule: DrawRule = "uniform"
    latest: float = 0.5
    power: float = 2.0
    window: int | None = None
    size: int = 20


@dataclass
class Snapshot:
    """A snapshot in the pool: its ``number`` (from 0), the env steps at which it was taken, and the
    ``entry`` of the pool that holds its weights."""

    number: int
    env_steps: int
    entry: int

    @property
    def name(self) -> str:
        return str(self.number)


class PoolChange(NamedTuple):
    """A snapshot that was taken, and the one that has left the pool for it (None: none)."""

    taken: Snapshot
    removed: Snapshot | None


class League:
    """The snapshots of one policy that learns by self-play, with the results of all games.

    ``results`` are those of the last games of the policy, `LEARNER`, against each snapshot. A
    snapshot begins with the results that the policy has when it is taken, so that the matrix also
    tells how snapshots compare with each other. Results of snapshots that have left the pool are
    dropped. ``games`` counts all games.
    """

    def __init__(self, rules: LeagueRules) -> None:
        """Raises ConfigError if openskill is missing."""
        self._rules = rules
        self.snapshots: list[Snapshot] = []
        self.results = Results([LEARNER])
        self.ratings = OnlineRatings()
        self.ratings.add_player(LEARNER)
        self.taken = 0
        self.games = 0
        self._games_since = 0  # the newest snapshot was taken

    def take(self, env_steps: int) -> PoolChange:
        """Add a snapshot of the policy that learns, with the policy's rating and results."""
        removed = None
        if len(self.snapshots) == self._rules.size:
            steps = [*(snapshot.env_steps for snapshot in self.snapshots), env_steps]
            removed = self.snapshots[to_remove(steps)]
            self.remove(removed)
        used = {snapshot.entry for snapshot in self.snapshots}
        free = next(entry for entry in range(self._rules.size) if entry not in used)
        taken = Snapshot(self.taken, env_steps, free)
        self.taken += 1
        self._games_since = 0
        self.snapshots.append(taken)
        self.results.add_player(taken.name, like=LEARNER)
        for earlier in self.snapshots[:-1]:
            self.results.fade(LEARNER, earlier.name, FADE)
        self.ratings.add_player(taken.name, like=LEARNER)
        return PoolChange(taken, removed)

    def remove(self, snapshot: Snapshot) -> None:
        """Remove a snapshot from the pool, with its results."""
        self.snapshots.remove(snapshot)
        self.results.remove_player(snapshot.name)
        self.ratings.remove(snapshot.name)

    def add(self, number: int, score: float) -> None:
        """Take the result of a game of the policy that learns against snapshot ``number``:
        ``score`` is 1 for a win, 0.5 for a draw. A game against a snapshot that has left the pool
        is not counted."""
        snapshot = next((each for each in self.snapshots if each.number == number), None)
        if snapshot is None:
            return
        self.games += 1
        self._games_since += 1
        self.results.fade(LEARNER, snapshot.name, 1.0 - 1.0 / MEMORY)
        self.results.add(LEARNER, snapshot.name, score)
        if self._games_since % max(1, self._games_since // RATED) == 0:
            self.ratings.add(LEARNER, snapshot.name, score)

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Return the probability [size + 1] of each entry of the pool, and last that of the newest
        weights."""
        rules = self._rules
        drawn = probabilities(
            [self.win_rate(snapshot) for snapshot in self.snapshots],
            rules.rule,
            latest=rules.latest,
            power=rules.power,
            window=rules.window,
        )
        of_entry = np.zeros(rules.size + 1)
        of_entry[[snapshot.entry for snapshot in self.snapshots]] = drawn[:-1]
        of_entry[-1] = drawn[-1]
        return of_entry

    def win_rate(self, snapshot: Snapshot) -> float:
        """Return the estimated win rate of the policy by which a snapshot is drawn."""
        return expected_win_rate(*self.results.of(LEARNER, snapshot.name))

    @property
    def rating(self) -> Rating:
        """The rating of the policy that learns, which follows its games: see `RATED`."""
        return self.ratings[LEARNER]

    def fitted(self) -> Elo:
        """Return the ratings that explain all results in the pool best, in the order of
        ``results.players``; the oldest snapshot has 1200."""
        return fit_elo(self.results, anchored=self.snapshots[0].name)

    def scalars(self) -> dict[str, float]:
        """Return the metrics of a report. Win rates are over the last games against each
        snapshot."""
        rating = self.rating
        rates = self.results.win_rates[self.results.players.index(LEARNER)]
        rates = rates[~np.isnan(rates)]
        scalars = {
            "self_play_snapshots": float(len(self.snapshots)),
            "self_play_games": float(self.games),
            "self_play_elo": rating.elo,
            "self_play_elo_sd": rating.sd,
        }
        if len(rates):
            scalars["self_play_win_rate_mean"] = float(np.mean(rates))
            scalars["self_play_win_rate_min"] = float(np.min(rates))
        return scalars

    def summary(self) -> dict[str, Any]:
        """Return the values of self_play.json: the snapshots in the pool, the matrix of their
        results, and the fitted ratings."""
        fitted = self.fitted()
        return {
            "snapshots": [asdict(snapshot) for snapshot in self.snapshots],
            "results": self.results.state(),
            "elo": fitted.ratings.tolist(),
            "elo_error": fitted.errors.tolist(),
            "rating": self.rating._asdict(),
            "games": self.games,
        }

    def state(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores."""
        return {
            "taken": self.taken,
            "games": self.games,
            "games_since": self._games_since,
            "snapshots": [asdict(snapshot) for snapshot in self.snapshots],
            "results": self.results.state(),
            "ratings": self.ratings.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` has returned."""
        self.taken, self.games = int(state["taken"]), int(state["games"])
        self._games_since = int(state["games_since"])
        self.snapshots = [Snapshot(**each) for each in state["snapshots"]]
        self.results = Results.from_state(state["results"])
        self.ratings.load(state["ratings"])

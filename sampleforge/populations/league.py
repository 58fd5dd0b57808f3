"""The bookkeeping of self-play: the snapshots in the pool, which one leaves it and which one is
drawn, the results against them, ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sampleforge.populations.ratings import Elo, OnlineRatings, Rating, Results, fit_elo

DrawRule = Literal["uniform", "hard", "even"]
"""How an opponent is drawn among the past snapshots: all alike; by ``(1 - w)^power``, which prefers
snapshots that are hard to beat; or by ``w (1 - w)``, which prefers those of the same strength.
``w`` is the learning policy's win rate against the snapshot (prioritised fictitious self-play,
Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)."""

Floats = npt.NDArray[np.float64]


def weights(win_rates: Sequence[float], rule: DrawRule, power: float = 2.0) -> Floats:
    """Return the probability [N] of each snapshot under ``rule`` alone; they sum to 1.

    ``win_rates``: how often the learning policy beats each snapshot, from 0 to 1; a draw counts
    half. Where all weights of a rule are 0 (every snapshot always loses), all probabilities are
    equal. Raises ValueError if there is no snapshot, or for a win rate outside of [0, 1].
    """
    rates = np.asarray(win_rates, np.float64)
    if rates.size == 0:
        raise ValueError("there is no snapshot to draw from")
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ValueError(f"win rates must be in [0, 1], but are {list(win_rates)}")
    if rule == "hard":
        raw = (1.0 - rates) ** power
    elif rule == "even":
        raw = rates * (1.0 - rates)
    else:
        raw = np.ones_like(rates)
    total = raw.sum()
    return raw / total if total > 0.0 else np.full_like(rates, 1.0 / rates.size)


def probabilities(
    win_rates: Sequence[float],
    rule: DrawRule,
    *,
    latest: float = 0.5,
    power: float = 2.0,
    window: int | None = None,
) -> Floats:
    """Return the probability [N + 1] of each opponent of an episode: of the N snapshots, and last
    of the newest weights of the policy that learns.

    The newest weights are drawn with probability ``latest``, or always while there is no snapshot;
    otherwise one of the ``window`` newest snapshots (None: of all) is drawn by ``rule``. Raises
    ValueError as `weights` does, for a ``latest`` outside of [0, 1], and for a ``window`` below 1.
    """
    if not 0.0 <= latest <= 1.0:
        raise ValueError(f"the probability of the newest weights must be in [0, 1], not {latest}")
    if window is not None and window < 1:
        raise ValueError(f"the window must hold at least one snapshot, not {window}")
    count = len(win_rates)
    drawn = np.zeros(count + 1)
    drawn[-1] = latest if count else 1.0
    if count:
        first = 0 if window is None else max(0, count - window)
        drawn[first:-1] = (1.0 - latest) * weights(win_rates[first:], rule, power)
    return drawn


def to_remove(env_steps: Sequence[int]) -> int:
    """Return the index of the snapshot that leaves a pool which has one too many.

    ``env_steps``: when each was taken. The oldest and the newest stay; among the others, the one
    leaves whose neighbours are closest to each other (of several such, the oldest), so that the
    pool covers the whole training evenly, however long it lasts. Of four, where the newest but one
    always has the closer neighbours, the second leaves once it is in the first third of the
    training. Raises ValueError for fewer than two snapshots; of two, the older one leaves.
    """
    if len(env_steps) < 2:
        raise ValueError("a pool keeps at least one snapshot")
    if len(env_steps) == 2:
        return 0
    steps = np.asarray(env_steps, np.int64)
    if len(steps) == 4:
        return 1 if 3 * (steps[1] - steps[0]) < steps[3] - steps[0] else 2
    return 1 + int(np.argmin(steps[2:] - steps[:-2]))


def expected_win_rate(wins: float, games: float) -> float:
    """Return the estimate of a win rate by which opponents are drawn, from ``games`` games with a
    sum of scores ``wins`` (a draw is half a win): as if one more game had been won and one more
    lost, so that a snapshot without games counts as an even one, not as one that always wins."""
    return (wins + 1.0) / (games + 2.0)


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
    `sampleforge.populations.league`. ``size``: number of snapshots that the pool holds."""

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

    def take(self, env_steps: int) -> Snapshot:
        """Add a snapshot of the policy that learns, with the policy's rating and results."""
        if len(self.snapshots) == self._rules.size:
            steps = [*(snapshot.env_steps for snapshot in self.snapshots), env_steps]
            self.remove(self.snapshots[to_remove(steps)])
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
        return taken

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

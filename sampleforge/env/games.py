"""Games: episodes of an environment with all of its agents.

An agent's episode ends when the agent leaves; the game goes on until no agent is left. Returns are
reported of whole games: a mean over some of the agents only would say as much about who they are as
about how they play.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.env.vector import NO_STATS, Array, EnvVector, Episode, StepOut
from sampleforge.spec import EnvSpec

MAX_TYPES = 16
"""Number of types of agents above which their returns are not reported one by one."""
MAX_NAME = 64
"""Longest name of a type."""
OF_ENV = "env_"
"""The beginning of the names of the metrics that an environment reports of its episodes."""
OF_RUN = frozenset({"steps", "steps_per_s", "frames", "restarts"})
"""What follows it in the names of the metrics that every run reports."""
OF_TYPE = "return_mean_agents_"
"""The beginning of the names of the metrics of types; the type follows it."""


class Part(NamedTuple):
    """One agent's part of a game: ``ret``, the sum of its raw rewards; its ``length`` in env steps;
    ``player``: what played it when it left, as `Games.step` was told; ``stats``: what `stats_of`
    returns of the episode."""

    ret: float
    length: int
    player: int
    stats: Mapping[str, float] = NO_STATS


class FinishedGame(NamedTuple):
    """A finished game of a row: its ``length`` in env steps, and the ``parts`` of the agents that
    took part in it, by their seats. In a single-agent environment it is an episode."""

    row: int
    length: int
    parts: Mapping[int, Part]

    def mean(self, seats: Sequence[int]) -> float | None:
        """Return the mean return of those of ``seats`` that took part; None if none did."""
        returns = [self.parts[seat].ret for seat in seats if seat in self.parts]
        return sum(returns) / len(returns) if returns else None


class Games:
    """Puts the episodes of the agents in ``seats``, of one environment, together into games.

    A game counts if the episodes of all of its agents do: one with a dropped step, or one that was
    shortened by decorrelation, is left out."""

    def __init__(self, seats: Sequence[EnvVector]) -> None:
        rows = seats[0].num_rows
        self._seats = seats
        self._length = np.zeros(rows, np.int64)  # -1: the next step resets the row
        self._parts: list[dict[int, Part]] = [{} for _ in range(rows)]
        self._spoilt = np.zeros(rows, np.bool_)

    def beginning(self) -> npt.NDArray[np.intp]:
        """Return the rows in which a game of several agents begins with the next step."""
        return np.flatnonzero(self._length == 0)

    def step(
        self,
        outs: Sequence[StepOut],
        ended: Sequence[Sequence[Episode]],
        players: Sequence[int] | None = None,
    ) -> list[FinishedGame]:
        """Take a step of all seats, and the episodes that ended with it, by seat; return the games
        that ended. ``players``: what played each seat in this step (default: its number)."""
        players = range(len(self._seats)) if players is None else players
        if len(self._seats) == 1:
            only = players[0]
            return [
                FinishedGame(e.row, e.length, {0: Part(e.ret, e.length, only, stats_of(e))})
                for e in ended[0]
            ]
        self._length += 1
        left = [out.terminated | out.truncated for out in outs]
        if not any(map(np.count_nonzero, left)):
            return []
        lost = np.zeros_like(self._spoilt)  # rows whose environment was rebuilt
        for seat, (out, gone, episodes) in enumerate(zip(outs, left, ended, strict=True)):
            lost |= gone & out.first
            self._add(seat, gone, episodes, players[seat])
        present = np.array([seat.present for seat in self._seats], np.bool_).any(axis=0)
        games = [self._end(row) for row in np.flatnonzero(lost | ~present).tolist()]
        self._length[lost] = 0
        return [game for game in games if game is not None]

    def _add(self, seat: int, gone: Array, episodes: Sequence[Episode], player: int) -> None:
        """Take the episodes of one seat, whose agent has left the rows ``gone``, bool [rows]."""
        dropped = gone.copy()
        for e in episodes:
            dropped[e.row] = False
            before = self._parts[e.row].get(seat, Part(0.0, 0, player))
            stats = {**before.stats, **stats_of(e)}
            self._parts[e.row][seat] = Part(
                before.ret + e.ret, before.length + e.length, player, stats
            )
        self._spoilt |= dropped

    def _end(self, row: int) -> FinishedGame | None:
        """End the game of a row, and return it if it counts."""
        length, parts = int(self._length[row]), self._parts[row]
        counts = not self._spoilt[row] and length > 0
        self._length[row], self._parts[row], self._spoilt[row] = -1, {}, False  # resets next
        return FinishedGame(row, length, parts) if counts else None


def stats_of(episode: Episode) -> Mapping[str, float]:
    """Return the statistics of an episode by their names in reports: those of the environment, with
    its success if that is known, and those of callbacks. One whose name the run has for itself is
    ``env_own_*``: under its own it would stand in the place of the env steps."""
    own = {
        f"{OF_ENV}{'own_' if name in OF_RUN else ''}{name}": value
        for name, value in episode.stats.items()
    }
    if episode.success is not None:
        own[f"{OF_ENV}success"] = episode.success
    return {**own, **episode.custom}


def types_of_seats(spec: EnvSpec) -> tuple[str, ...]:
    """Return the type of the agent in each seat of an environment, whose ``spec`` is that of its
    first agent group: the agent's name without the number at its end. In a game of two, each agent
    is a type of its own. Empty if there is one type only, or more than `MAX_TYPES`."""
    agents = [agent for group in spec.agent_groups for agent in group.agents]
    names = agents if len(agents) == 2 else [re.sub(r"[\W_]*\d+$", "", agent) for agent in agents]
    types = tuple(re.sub(r"\W+", "_", name)[:MAX_NAME] or "agent" for name in names)
    return types if 1 < len(set(types)) <= MAX_TYPES else ()


def means_of_types(game: FinishedGame, types: Sequence[str]) -> dict[str, float]:
    """Return the mean return of the agents of each type that took part in a game, by the type.
    ``types``: of each seat, as `types_of_seats` returns them."""
    seats: dict[str, list[int]] = {}
    for seat, name in enumerate(types):
        seats.setdefault(name, []).append(seat)
    means = {name: game.mean(own) for name, own in seats.items()}
    return {name: mean for name, mean in means.items() if mean is not None}

"""The episode player, which plays episodes with a fixed policy and records their raw returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from sampleforge.env.config import EnvConfig
from sampleforge.env.games import OF_TYPE, Games, means_of_types, types_of_seats
from sampleforge.env.place import EVALUATOR_STREAM, Place, row_seeds
from sampleforge.env.registry import for_evaluation, make_vector
from sampleforge.env.vector import Array, EnvVector, StepOut, own_outputs
from sampleforge.spec import EnvSpec
from sampleforge.workers.config import EVALUATION_ROWS

MAX_ROWS = EVALUATION_ROWS
EPISODE_LIMIT = 27_000
"""Env steps after which an episode is cut if the environment has no limit; it is Atari's limit in
the literature."""


class EpisodePolicy(Protocol):
    """A policy with fixed weights, such as `sampleforge.algorithms.acting.FrozenPolicy`,
    which says what the arguments are."""

    def initial_state(self, rows: int) -> torch.Tensor: ...

    def act(
        self,
        obs: Mapping[str, Array],
        state: torch.Tensor,
        is_first: Array,
        *,
        stochastic: bool,
        generator: torch.Generator | None,
    ) -> tuple[dict[str, Array], torch.Tensor]: ...


class StepListener(Protocol):
    """Is told of the steps of an `EpisodePlayer`."""

    def acting(self, out: StepOut, actions: Mapping[str, Array]) -> None:
        """Look at the observations, in ``out``, and at the actions for them, before the step."""

    def stepped(self, out: StepOut) -> None:
        """Look at the results of the step."""


class PlayedEpisode(NamedTuple):
    """An episode: ``ret``, the sum of its raw rewards, ``length`` in env steps, whether it was
    ``cut`` by the player's limit before an end of its own, and whether it ended with ``success``
    (None: not known).

    With several agents it is a whole game, ``ret`` is the mean over the agents that the policy
    played in it, and ``of_type`` has the mean over the agents of each type, by the type."""

    ret: float
    length: int
    cut: bool = False
    of_type: Mapping[str, float] = MappingProxyType({})
    success: float | None = None


class EvaluationPart(NamedTuple):
    """The part of an evaluation that ``evaluator`` (from 0) of ``evaluators`` plays: some of the
    env rows, ``most_rows`` at most, with the seeds and the episodes that these rows have if one
    evaluator plays all."""

    evaluator: int = 0
    evaluators: int = 1
    most_rows: int = MAX_ROWS

    @classmethod
    def of(cls, spec: EnvSpec | None, evaluator: int = 0, evaluators: int = 1) -> EvaluationPart:
        """Return the part in an environment of which each process may be able to have one only
        (None: not known)."""
        alone = spec is not None and spec.one_per_process
        return cls(evaluator, evaluators, evaluators if alone else MAX_ROWS)

    def rows(self, episodes: int) -> range:
        """Return the part's rows of an evaluation of so many episodes."""
        rows = min(self.most_rows, episodes)
        begin, end = (rows * i // self.evaluators for i in (self.evaluator, self.evaluator + 1))
        return range(begin, end)

    def episodes(self, episodes: int) -> int:
        """Return the number of the part's episodes."""
        each, more = divmod(episodes, min(self.most_rows, episodes))
        return sum(each + (row < more) for row in self.rows(episodes))

    def seed(self, seed: int) -> int:
        """Return the seed of the part's action sampling, in an evaluation with ``seed``."""
        return row_seeds(seed, self.evaluator, EVALUATOR_STREAM, 1)[0] if self.evaluator else seed


ALL = EvaluationPart()
"""The part of the only evaluator."""


def evaluation_envs(
    config: EnvConfig, episodes: int, seed: int, part: EvaluationPart = ALL
) -> EnvVector:
    """Return the env rows that play ``episodes`` episodes, or a ``part`` of them; every row starts
    with a new episode."""
    rows = part.rows(episodes)
    seeds = row_seeds(seed, 0, 0, rows.stop)[rows.start :]
    config = for_evaluation(config)
    return make_vector(config, len(rows), seeds, Place(part.evaluator, rows.start))


def number_of_episodes(asked: int | None, default: int) -> int:
    """Return how many episodes to play: ``default`` if None is ``asked``. Raises ValueError for a
    number below 1."""
    if asked is None:
        return default
    if asked < 1:
        raise ValueError(
            f"episodes={asked}: must be at least 1, or None for the default, which is {default}"
        )
    return asked


def evaluation_seed(seed: int) -> int:
    """Return the default seed of the evaluations of a run with ``seed``."""
    return seed + 1


class _Seat:
    """One agent of every row: its env vector, the policy that plays it, and where it is."""

    def __init__(self, env: EnvVector, policy: EpisodePolicy) -> None:
        self.env = env
        self.policy = policy
        self.out = own_outputs(env.spec, env.num_rows)
        self.out.first.fill(True)
        self.state = policy.initial_state(env.num_rows)
        env.reset(self.out.obs)


class EpisodePlayer:
    """Plays ``episodes`` episodes on ``envs``, which must not have been reset, one vector step at a
    time.

    In a multi-agent environment an episode is a whole game (see `sampleforge.env.games`).
    ``policy`` plays all agents of the agent group ``group``, whose mean return is that of the game,
    and ``others`` has the policies of the other groups, by their index.

    Every row plays the same number of episodes (the first rows one more), so that short episodes
    are not over-represented. Afterwards the row continues, but its episodes are not counted.
    Actions are the most likely ones, or drawn from the policy if ``stochastic``.

    Episodes are cut after ``limit`` steps (None: `EPISODE_LIMIT` if the environment has no limit);
    an environment that has such a limit, or a shorter one, does it itself.
    If the rows of a VectorEnv cannot be ended one by one (``can_cut`` is False), the steps of a row
    up to the limit count as its last episode.
    """

    def __init__(
        self,
        envs: EnvVector,
        policy: EpisodePolicy,
        episodes: int,
        *,
        stochastic: bool,
        seed: int,
        limit: int | None = None,
        group: int = 0,
        others: Mapping[int, EpisodePolicy] | None = None,
    ) -> None:
        rows = self.num_rows = envs.num_rows
        self._envs = envs
        self._played: list[list[PlayedEpisode]] = [[] for _ in range(rows)]
        self._quota: list[int]
        self._share(episodes)
        own = envs.spec.max_episode_steps or math.inf
        if limit is None and own == math.inf:
            limit = EPISODE_LIMIT
        self.limit = limit
        self.can_cut = limit is None or own <= limit or envs.limit_episodes(limit)
        self._returns, self._lengths = np.zeros(rows), np.zeros(rows, np.int64)
        self.steps = 0
        policies = {**(others or {}), group: policy}
        self._stochastic = stochastic
        self._generator = torch.Generator().manual_seed(seed)
        groups = [envs.spec.group_of(seat.agent) for seat in envs.seats]
        self._seats = [
            _Seat(seat, policies[own]) for seat, own in zip(envs.seats, groups, strict=True)
        ]
        self._games = Games(envs.seats)
        self._counted = [seat for seat, own in enumerate(groups) if own == group]
        self._types = types_of_seats(envs.spec)
        self._out = self._seats[0].out
        self.listener: StepListener | None = None
        """Is told of every step."""

    @property
    def done(self) -> bool:
        """Whether every row has played its share."""
        return self._left == 0

    @property
    def quota(self) -> list[int]:
        """Number of episodes of each row that count: its first ones."""
        return list(self._quota)

    @property
    def played(self) -> list[PlayedEpisode]:
        """The counted episodes, ordered by row and then by time."""
        return [episode for row in self._played for episode in row]

    @property
    def num_played(self) -> int:
        """Number of episodes counted so far."""
        return sum(len(row) for row in self._played)

    @property
    def return_mean(self) -> float | None:
        """Mean return of the episodes counted so far; None before the first."""
        return float(np.mean([each.ret for each in self.played])) if self.num_played else None

    @property
    def rows_in_first(self) -> int:
        """Number of rows that have not finished their first episode."""
        return sum(not row for row in self._played)

    def shorten(self, episodes: int) -> None:
        """Reduce the total to ``episodes``, at least one per row. A row that has played more than
        its new share keeps its first ones."""
        self._share(episodes)
        self._played = [row[:n] for row, n in zip(self._played, self._quota, strict=True)]
        self._left = episodes - self.num_played

    def _share(self, episodes: int) -> None:
        rows = self.num_rows
        self.episodes = self._left = episodes
        self._quota = [episodes // rows + (row < episodes % rows) for row in range(rows)]

    def step(self) -> None:
        """Take one step of every row."""
        for seat in self._seats:
            out = seat.out
            actions, seat.state = seat.policy.act(
                out.obs,
                seat.state,
                out.first,
                stochastic=self._stochastic,
                generator=self._generator,
            )
            if self.listener is not None:
                self.listener.acting(out, actions)
            seat.env.send(actions)
        self.steps += 1
        ended = []
        for seat in self._seats:
            ended.append(seat.env.recv(seat.out))
            if self.listener is not None:
                self.listener.stepped(seat.out)
        successes = {} if len(ended) > 1 else {each.row: each.success for each in ended[0]}
        for game in self._games.step([seat.out for seat in self._seats], ended):
            ret = game.mean(self._counted)
            if ret is not None:
                cut = game.length >= (self.limit or math.inf) and self._is_truncated(game.row)
                of_type = means_of_types(game, self._types)
                success = successes.get(game.row)
                self._count(game.row, PlayedEpisode(ret, game.length, cut, of_type, success))
        if not self.can_cut:
            self._end_at_limit([episode.row for episode in ended[0]])

    def _is_truncated(self, row: int) -> bool:
        """Return whether the game of a row ended without an end of its own in this step."""
        outs = [seat.out for seat in self._seats]
        return any(out.truncated[row] and not out.terminated[row] for out in outs)

    def _count(self, row: int, episode: PlayedEpisode) -> None:
        if len(self._played[row]) < self._quota[row]:
            self._played[row].append(episode)
            self._left -= 1

    def _end_at_limit(self, ended: list[int]) -> None:
        """End the share of each row whose current episode has reached the limit."""
        assert self.limit is not None
        self._returns += self._out.reward
        self._lengths += self._out.valid
        self._returns[ended], self._lengths[ended] = 0.0, 0
        for row in np.flatnonzero(self._lengths == self.limit).tolist():
            self._count(row, PlayedEpisode(float(self._returns[row]), self.limit, cut=True))
            self._left -= self._quota[row] - len(self._played[row])
            self._quota[row] = len(self._played[row])


def outcome(played: Sequence[PlayedEpisode]) -> dict[str, Any]:
    """Return the statistics of episodes: their number, and mean, standard deviation, minimum and
    maximum of their returns, and their mean length in env steps; the share that ended with success,
    where that is known; then the mean return of each type of agents, over the games in which it
    took part, if there are several."""
    returns = np.array([episode.ret for episode in played])
    successes = [episode.success for episode in played if episode.success is not None]
    types = dict.fromkeys(name for episode in played for name in episode.of_type)
    of_type = {
        name: [episode.of_type[name] for episode in played if name in episode.of_type]
        for name in types
    }
    return {
        "episodes": len(played),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(np.mean([episode.length for episode in played])),
        **({"success_rate": float(np.mean(successes))} if successes else {}),
        **{f"{OF_TYPE}{name}": float(np.mean(means)) for name, means in of_type.items()},
    }


def known_episodes(played: Sequence[PlayedEpisode]) -> dict[str, int]:
    """Return, for each metric of the `outcome` that not all episodes have, of how many it is."""
    successes = ["success_rate" for episode in played if episode.success is not None]
    types = [f"{OF_TYPE}{name}" for episode in played for name in episode.of_type]
    return {name: n for name, n in Counter([*successes, *types]).items() if n < len(played)}

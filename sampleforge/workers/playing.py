"""Playing episodes with a policy that does not change: raw returns, repeatable with a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.seeding import row_seeds
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork

MAX_ROWS = 16


class Played(NamedTuple):
    """One episode: the sum of its raw rewards, its length in env steps."""

    ret: float
    length: int


def evaluation_envs(config: EnvConfig, episodes: int, seed: int) -> EnvVector:
    """The rows that play ``episodes`` episodes, from their beginnings."""
    rows = min(MAX_ROWS, episodes)
    config = dataclasses.replace(config, decorrelate=False)
    return make_vector(config, rows, row_seeds(seed, 0, 0, rows))


def evaluation_seed(seed: int) -> int:
    """Of the evaluations of a run, unless another is asked for."""
    return seed + 1


class EpisodePlayer:
    """Plays ``episodes`` episodes on ``envs``, which were not reset yet, a vector step at a time.

    Every row plays the same number of episodes (the first rows one more), so that short episodes
    are not over-represented; it goes on when it has, and what it plays then is not counted. Actions
    are the most likely ones, or with ``stochastic`` drawn from the policy.
    """

    def __init__(
        self,
        envs: EnvVector,
        model: ActorCritic | QNetwork,
        episodes: int,
        *,
        stochastic: bool,
        seed: int,
    ) -> None:
        rows = envs.num_rows
        self._envs = envs
        self._model = model
        self._stochastic = stochastic
        self._quota = [episodes // rows + (row < episodes % rows) for row in range(rows)]
        self._played: list[list[Played]] = [[] for _ in range(rows)]
        self._left = episodes
        self._generator = torch.Generator().manual_seed(seed)
        self._out = own_outputs(envs.spec, rows)
        self._out.first.fill(True)
        self._state = torch.zeros(rows, model.state_size)
        envs.reset(self._out.obs)

    @property
    def done(self) -> bool:
        """Whether every row has played its share."""
        return self._left == 0

    @property
    def played(self) -> list[Played]:
        """The counted episodes, in the order of rows and then of time."""
        return [one for row in self._played for one in row]

    @torch.inference_mode()
    def step(self) -> None:
        """One step of every row."""
        obs = {n: torch.from_numpy(leaf) for n, leaf in self._out.obs.items()}
        output = self._model.step(obs, self._state, torch.from_numpy(self._out.first))
        distribution = self._model.distribution(output.parameters, obs)
        drawn = distribution.sample(self._generator) if self._stochastic else distribution.mode()
        self._state = output.state
        self._envs.send({n: action.numpy() for n, action in drawn.items()})
        for episode in self._envs.recv(self._out):
            mine = self._played[episode.row]
            if len(mine) < self._quota[episode.row]:
                mine.append(Played(episode.ret, episode.length))
                self._left -= 1


def outcome(played: Sequence[Played]) -> dict[str, Any]:
    """What episodes say of the policy that played them."""
    returns = np.array([one.ret for one in played])
    return {
        "episodes": len(played),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(np.mean([one.length for one in played])),
    }

"""PaddleDuel-v0: two agents play for a point, with a paddle each; a small and fast game for
self-play.

The court is [-1, 1] x [-1, 1]; ``left`` has its paddle at x = -1, ``right`` at x = 1. An episode is
one point: the agent that misses the ball gets reward -1, the other one +1, and all other rewards
are 0. The ball is served from the middle to a random side. Each hit makes it `FASTER`, and the
place of the paddle that hits it sets its angle, so that good play means to foresee where the ball
comes down and to send it where the opponent is not. An episode without a miss is cut after
`MAX_EPISODE_STEPS` steps, and is a draw.

Both agents see the court from their own side: the own paddle on the left. So the game is the same
from both seats, and one policy can play either. Observation: float32 [6]: the y of the own paddle,
the y of the opponent's, the x and y of the ball, and its velocity x and y in units of `TOP_SPEED`.
Actions: 0 stay, 1 up, 2 down.

All rows are stepped together in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sampleforge.env.config import EnvConfig
from sampleforge.env.family import ConfigError, Family, refuse_kwargs
from sampleforge.env.multi_agent import MultiAgentRows
from sampleforge.env.vector import Array, EnvVector
from sampleforge.spec import ACTION, OBSERVATION, EnvSpaces

ID = "PaddleDuel-v0"
AGENTS = ("left", "right")
MAX_EPISODE_STEPS = 400
PADDLE_SPEED = 0.06
"""Distance that a paddle moves per step."""
HALF_PADDLE = 0.2
"""Half the length of a paddle."""
SERVE_SPEED = 0.06
"""Speed of a served ball along x, per step."""
FASTER = 1.1
"""Factor of the ball's speed along x at each hit, up to `TOP_SPEED`."""
TOP_SPEED = 0.25
SLOPE = 0.9
"""The ball's speed along y, as a part of that along x, after a hit with the end of a paddle."""
SPACES = EnvSpaces(spaces.Box(-2.0, 2.0, (6,), np.float32), spaces.Discrete(3))
MOVES = np.array([0.0, PADDLE_SPEED, -PADDLE_SPEED])


class PaddleDuel(MultiAgentRows):
    """``num_rows`` games; each draws its serves from a generator of its own seed."""

    def __init__(self, config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> None:
        refuse_kwargs(config)
        super().__init__(
            config,
            dict.fromkeys(AGENTS, SPACES),
            num_rows,
            limit=MAX_EPISODE_STEPS,
            protocol="one point per episode: +1 for the winner, -1 for the loser",
        )
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._paddles = np.zeros((2, num_rows))
        self._x, self._y = np.zeros(num_rows), np.zeros(num_rows)
        self._dx, self._dy = np.zeros(num_rows), np.zeros(num_rows)

    def reset_rows(self) -> None:
        self._serve(range(self.num_rows))
        self.present[:] = True
        self._look()

    def _serve(self, rows: Sequence[int]) -> None:
        """Begin a new game in each of ``rows``."""
        for row in rows:
            side, height, slope = self._generators[row].random(3).tolist()
            self._paddles[:, row] = 0.0
            self._x[row], self._y[row] = 0.0, height - 0.5
            self._dx[row] = SERVE_SPEED if side < 0.5 else -SERVE_SPEED
            self._dy[row] = SERVE_SPEED * SLOPE * (2.0 * slope - 1.0)

    def step_rows(self, actions: Sequence[Mapping[str, Array]], over: Array) -> None:
        for seat, own in enumerate(actions):
            self._paddles[seat] += MOVES[own[ACTION]]
        limit = 1.0 - HALF_PADDLE
        np.clip(self._paddles, -limit, limit, out=self._paddles)
        self._move_ball()
        missed = [self._hit(seat) for seat in (0, 1)]
        self.reward[0] = missed[1].astype(np.float32) - missed[0]
        np.negative(self.reward[0], out=self.reward[1])
        self.terminated[:] = missed[0] | missed[1]
        self.truncated[:] = False
        if np.count_nonzero(over):
            self._serve(np.flatnonzero(over).tolist())
            self.terminated[:, over] = False
        np.logical_not(self.terminated, out=self.present)
        self._look()

    def _move_ball(self) -> None:
        """Move the ball of each row by a step; the walls at y = -1 and 1 reflect it."""
        self._x += self._dx
        self._y += self._dy
        beyond = np.abs(self._y) > 1.0
        if np.count_nonzero(beyond):
            self._y[beyond] = np.copysign(2.0, self._y[beyond]) - self._y[beyond]
            self._dy[beyond] = -self._dy[beyond]

    def _hit(self, seat: int) -> Array:
        """Reflect the balls that reach the paddle of ``seat``; return the rows, bool [rows], whose
        ball it has missed."""
        side = -1.0 if seat == 0 else 1.0
        reached: Array = self._x * side >= 1.0
        if not np.count_nonzero(reached):
            return reached
        offset = (self._y - self._paddles[seat]) / HALF_PADDLE
        hit = reached & (np.abs(offset) <= 1.0)
        speed = np.minimum(np.abs(self._dx[hit]) * FASTER, TOP_SPEED)
        self._x[hit] = side
        self._dx[hit] = -side * speed
        self._dy[hit] = SLOPE * speed * offset[hit]
        missed: Array = reached & ~hit
        return missed

    def _look(self) -> None:
        """Write the observations of both agents."""
        for seat, side in ((0, 1.0), (1, -1.0)):
            obs = self.obs[seat][OBSERVATION]
            obs[:, 0], obs[:, 1] = self._paddles[seat], self._paddles[1 - seat]
            obs[:, 2], obs[:, 3] = side * self._x, self._y
            obs[:, 4], obs[:, 5] = side * self._dx / TOP_SPEED, self._dy / TOP_SPEED

    def close(self) -> None:
        pass


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    return PaddleDuel(config, num_rows, seeds).seats[0]


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    raise ConfigError(f"{ID} has no single environment that could be used by hand or be filmed")


FAMILY = Family(
    name="paddle_duel",
    claims=lambda env_id: env_id.startswith("PaddleDuel"),
    ids=lambda: [ID],
    make_vector=make_vector,
    make_single=make_single,
    plain_kwargs=True,
)

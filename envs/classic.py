"""The family of classic control: CartPole with a vector backend. The other tasks are plain
gymnasium ids.

The results are bit-identical to those of gymnasium's `CartPoleVectorEnv` (a test compares them).
The assertions, stacking and copying that take two thirds of its step are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from sampleforge.env.adapter import env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.registry import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import Array, EnvVector, StepOut
from sampleforge.spec import ACTION, OBSERVATION, EnvSpaces

LIMITS = {"CartPole-v0": 200, "CartPole-v1": 500}


class CartPoleVector(EnvVector):
    """CartPole for ``num_rows`` rows in vectorised numpy, in the NEXT_STEP layout. Steps are taken
    in ``recv``."""

    always_finite = True  # a cart that leaves its bounds ends its episode

    def __init__(self, config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> None:
        limit = config.max_episode_steps or LIMITS[config.env]
        env = CartPoleVectorEnv(num_rows, max_episode_steps=limit, **config.env_kwargs)  # type: ignore[arg-type]
        self._physics = env
        declared = EnvSpaces(env.single_observation_space, env.single_action_space)
        super().__init__(env_spec(config.env, declared, max_episode_steps=limit), num_rows)
        self._random = np.random.default_rng(list(seeds))
        self._sutton_barto = bool(config.env_kwargs.get("sutton_barto_reward", False))
        self._limit = limit
        self._decorrelate = config.decorrelate
        self._state = np.empty((4, num_rows))
        self._elapsed = np.zeros(num_rows, np.int64)

    def reset(self, obs: Mapping[str, Array]) -> None:
        self._state[:] = self._start(self.num_rows)
        if self._decorrelate:
            # Row i starts late in its first episode, which is not counted.
            self._elapsed[:] = self._limit * np.arange(self.num_rows)[::-1] // self.num_rows
            self._leave_out_first = True
        obs[OBSERVATION][:] = self._state.T

    def _start(self, rows: int) -> Array:
        return self._random.uniform(-0.05, 0.05, (4, rows))

    def _begin(self, actions: dict[str, Array]) -> None:
        self._actions = actions[ACTION]

    def _complete(self, out: StepOut) -> None:
        state, env = self._state, self._physics
        self._move()
        np.greater(np.abs(state[0]), env.x_threshold, out=out.terminated)
        out.terminated |= np.abs(state[2]) > env.theta_threshold_radians
        self._elapsed += 1
        np.greater_equal(self._elapsed, self._limit, out=out.truncated)
        out.reward[:] = -out.terminated.astype(np.float32) if self._sutton_barto else 1.0
        if self._any_ended:  # their action is ignored, and the base class clears their flags
            state[:, self._ended] = self._start(int(np.count_nonzero(self._ended)))
            self._elapsed[self._ended] = 0
        out.obs[OBSERVATION][:] = state.T

    def _move(self) -> None:
        """Take an Euler step of the equations of Barto, Sutton and Anderson, in gymnasium's order
        of operations."""
        env = self._physics
        x, x_dot, theta, theta_dot = self._state
        force = (2 * self._actions - 1) * env.force_mag
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + env.polemass_length * np.square(theta_dot) * sin) / env.total_mass
        theta_acc = (env.gravity * sin - cos * push) / (
            env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass)
        )
        x_acc = push - env.polemass_length * theta_acc * cos / env.total_mass
        x += env.tau * x_dot
        x_dot += env.tau * x_acc
        theta += env.tau * theta_dot
        theta_dot += env.tau * theta_acc

    def close(self) -> None:
        self._physics.close()


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    if config.env_backend == "single":
        return gymnasium_rows(config, lambda: gymnasium_env(config), num_rows, seeds)
    return CartPoleVector(config, num_rows, seeds)


FAMILY = Family(
    name="classic",
    claims=lambda env_id: env_id in LIMITS,
    ids=lambda: list(LIMITS),
    make_vector=make_vector,
    make_single=gymnasium_env,
    plain_kwargs=True,
)

"""The family of classic control: CartPole with a vector backend. The other tasks are plain
gymnasium ids.

``CartPoleNoVel-v1`` shows positions only, not velocities, so that a policy needs a memory to
balance the pole: the task of this name in RL Baselines3 Zoo.

The results are bit-identical to those of gymnasium's `CartPoleVectorEnv` (a test compares them).
The assertions, stacking and copying that take two thirds of its step are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.wrappers import TransformObservation

from sampleforge.env.adapter import env_spec
from sampleforge.env.config import EnvConfig
from sampleforge.env.family import Family
from sampleforge.env.gymnasium_ids import gymnasium_env, gymnasium_rows
from sampleforge.env.vector import Array, EnvVector, StepOut
from sampleforge.spec import ACTION, OBSERVATION, EnvSpaces

POSITIONS = "CartPoleNoVel-v1"
LIMITS = {"CartPole-v0": 200, "CartPole-v1": 500, POSITIONS: 500}


def seen(env_id: str) -> slice:
    """Return the part of the state (x, x_dot, theta, theta_dot) that a policy sees."""
    return slice(0, None, 2) if env_id == POSITIONS else slice(None)


def seen_space(env_id: str, state: spaces.Space[Any]) -> spaces.Box:
    """Return the space of observations, given that of the states."""
    assert isinstance(state, spaces.Box)
    part = seen(env_id)
    return spaces.Box(state.low[part], state.high[part], dtype=np.float32)


class CartPoleVector(EnvVector):
    """CartPole for ``num_rows`` rows in vectorised numpy, in the NEXT_STEP layout. Steps are taken
    in ``recv``."""

    always_finite = True  # a cart that leaves its bounds ends its episode

    def __init__(self, config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> None:
        limit = config.max_episode_steps or LIMITS[config.env]
        env = CartPoleVectorEnv(num_rows, max_episode_steps=limit, **config.env_kwargs)
        self._physics = env
        self._seen = seen(config.env)
        observations = seen_space(config.env, env.single_observation_space)
        declared = EnvSpaces(observations, env.single_action_space)
        super().__init__(env_spec(config.env, declared, max_episode_steps=limit), num_rows)
        self._random = np.random.default_rng(list(seeds))
        self._sutton_barto = bool(config.env_kwargs.get("sutton_barto_reward", False))
        self._limit = limit
        self._state = np.empty((4, num_rows))
        self._change = np.empty((4, num_rows))
        self._parts = np.empty((4, num_rows))
        self._outside = np.empty((2, num_rows), np.bool_)
        self._bounds = np.array([[env.x_threshold], [env.theta_threshold_radians]])
        self._forces = np.array([-env.force_mag, env.force_mag])
        self._elapsed = np.zeros(num_rows, np.int64)

    def reset(self, obs: Mapping[str, Array]) -> None:
        self._state[:] = self._start(self.num_rows)
        obs[OBSERVATION][:] = self._state[self._seen].T

    def decorrelate(self, numbers: Array, total: int) -> bool:
        self._elapsed[:] = self._limit * (total - 1 - numbers) // total  # a row starts late
        self._leave_out_first = True
        return True

    def _start(self, rows: int) -> Array:
        return self._random.uniform(-0.05, 0.05, (4, rows))

    def _begin(self, actions: dict[str, Array]) -> None:
        self._actions = actions[ACTION]

    def _complete(self, out: StepOut) -> None:
        state, positions = self._state, self._parts[:2]
        self._move()
        np.abs(state[::2], out=positions)
        np.greater(positions, self._bounds, out=self._outside)
        np.logical_or(self._outside[0], self._outside[1], out=out.terminated)
        self._elapsed += 1
        np.greater_equal(self._elapsed, self._limit, out=out.truncated)
        out.reward.fill(1.0)
        if self._sutton_barto:
            np.negative(out.terminated, out=out.reward, dtype=np.float32)
        if self._any_ended:  # their action is ignored, and the base class clears their flags
            state[:, self._ended] = self._start(int(np.count_nonzero(self._ended)))
            self._elapsed[self._ended] = 0
        out.obs[OBSERVATION][:] = state[self._seen].T

    def _move(self) -> None:
        """Take an Euler step of the equations of Barto, Sutton and Anderson, in gymnasium's order
        of operations:

            push = (force + polemass_length theta_dot^2 sin) / total_mass
            theta_acc = (gravity sin - cos push)
                        / (length (4 / 3 - masspole cos^2 / total_mass))
            x_acc = push - polemass_length theta_acc cos / total_mass

        Each line below is one operation, because a call takes longer than the arithmetic of a few
        rows.
        """
        env, state, change = self._physics, self._state, self._change
        theta, theta_dot, x_acc, theta_acc = state[2], state[3], change[1], change[3]
        cos, sin, push, other = self._parts
        np.cos(theta, out=cos)
        np.sin(theta, out=sin)
        np.square(theta_dot, out=push)
        np.multiply(push, env.polemass_length, out=push)
        np.multiply(push, sin, out=push)
        np.add(push, self._forces.take(self._actions), out=push)
        np.divide(push, env.total_mass, out=push)
        np.square(cos, out=other)
        np.multiply(other, env.masspole, out=other)
        np.divide(other, env.total_mass, out=other)
        np.subtract(4.0 / 3.0, other, out=other)
        np.multiply(other, env.length, out=other)
        np.multiply(sin, env.gravity, out=sin)
        np.multiply(cos, push, out=theta_acc)
        np.subtract(sin, theta_acc, out=theta_acc)
        np.divide(theta_acc, other, out=theta_acc)
        np.multiply(theta_acc, env.polemass_length, out=other)
        np.multiply(other, cos, out=other)
        np.divide(other, env.total_mass, out=other)
        np.subtract(push, other, out=x_acc)
        change[::2] = state[1::2]  # before they change themselves
        np.multiply(change, env.tau, out=change)
        np.add(state, change, out=state)

    def close(self) -> None:
        self._physics.close()


def make_single(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    if config.env != POSITIONS:
        return gymnasium_env(config, render_mode)
    env = gymnasium_env(replace(config, env="CartPole-v1"), render_mode)
    part, space = seen(config.env), seen_space(config.env, env.observation_space)
    return TransformObservation(env, lambda state: state[part], space)


def make_vector(config: EnvConfig, num_rows: int, seeds: Sequence[int]) -> EnvVector:
    if config.env_backend == "single":
        return gymnasium_rows(config, lambda: make_single(config), num_rows, seeds)
    return CartPoleVector(config, num_rows, seeds)


FAMILY = Family(
    name="classic",
    claims=lambda env_id: env_id in LIMITS,
    ids=lambda: list(LIMITS),
    make_vector=make_vector,
    make_single=make_single,
    plain_kwargs=True,
)

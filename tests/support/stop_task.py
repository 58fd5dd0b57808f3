"""A small environment in which the exact return of a trained policy can be computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from sampleforge.loaded_policy import LoadedPolicy

ENV = "tests.support.stop_task:StopEnv"
HORIZON = 30
STATES = 3
_END = np.array([[0.3, 0.04], [0.2, 0.06], [0.25, 0.1]])  # [state, choice]
_REWARD = np.array([[1.0, 0.6], [1.5, 1.0], [0.5, 1.2]])
_NEXT = np.array([[0.1, 0.6, 0.3], [0.4, 0.2, 0.4], [0.5, 0.3, 0.2]])  # [state, next state]


class StopEnv(gym.Env[Any, Any]):
    """Three states (observed one-hot) with two choices, which say how likely the episode ends; so
    long episodes have large returns. After `HORIZON` steps it is truncated. ``box``: the choice is
    whether an action in [-1, 1] is above 0, otherwise it is the action."""

    observation_space = spaces.Box(0, 1, (STATES,), np.float32)

    def __init__(self, box: bool = False) -> None:
        self.box = box
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        if box:
            self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.state = 0, 0
        return np.eye(STATES, dtype=np.float32)[self.state], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choice = int(action[0] > 0) if self.box else int(action)
        reward, ends = float(_REWARD[self.state, choice]), _END[self.state, choice]
        terminated = bool(self.np_random.random() < ends)
        edges = _NEXT[self.state].cumsum()
        self.state = min(int((self.np_random.random() > edges).sum()), STATES - 1)
        self.steps += 1
        seen = np.eye(STATES, dtype=np.float32)[self.state]
        return seen, reward, terminated, self.steps == HORIZON and not terminated, {}


@torch.no_grad()
def exact_return(policy: LoadedPolicy, *, box: bool) -> float:
    """Return the mean return of the policy that samples its actions, by dynamic programming over
    states and time."""
    obs = {"obs": torch.eye(STATES)}
    output = policy.model.step(obs, torch.zeros(STATES, 0), torch.ones(STATES, dtype=torch.bool))
    likely = _probabilities(policy, output.parameters, obs, box=box)
    value = np.zeros(STATES)
    for _ in range(HORIZON):
        value = (likely * (_REWARD + (1 - _END) * (_NEXT @ value)[:, None])).sum(1)
    return float(value[0])


def _probabilities(
    policy: LoadedPolicy, parameters: torch.Tensor, obs: Mapping[str, torch.Tensor], *, box: bool
) -> np.ndarray[Any, Any]:
    """Return the probability of each choice in each state, [state, choice]."""
    if not box:
        probabilities: np.ndarray[Any, Any] = torch.softmax(parameters.double(), -1).numpy()
        return probabilities
    mean, log_std = parameters.double().unbind(-1)
    above = torch.distributions.Normal(0.0, 1.0).cdf(mean / log_std.exp()).numpy()
    return np.stack((1 - above, above), -1)

"""SAC, CrossQ and TD3 find the solution of a linear-quadratic problem, which Riccati's equation
gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sampleforge.algorithms.critics_learner import CriticsLearner
from sampleforge.models.config import ModelConfig
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec
from tests.support.sac import (
    crossq_config,
    crossq_learner,
    sac_config,
    sac_learner,
    td3_config,
    td3_learner,
)

Floats = npt.NDArray[np.float64]
SPEC = EnvSpec(
    "Cart",
    {"obs": ArraySpec((2,), "float32")},
    {"action": ActionSpec("box", (1,), "float32", low=(-1.0,), high=(1.0,))},
)
GAMMA = 0.9
MOVES = np.array([[0.7, 0.3], [0.0, 0.6]])  # position and speed, which stay between -1 and 1
PUSH = np.array([[0.0], [0.4]])
COST, EFFORT = np.diag([1.0, 0.5]), 0.25


def best_gain() -> Floats:
    """K [2] of the best action -K s, by iterating Riccati's equation."""
    value = COST
    for _ in range(500):
        gain = np.linalg.solve(
            EFFORT + GAMMA * PUSH.T @ value @ PUSH, GAMMA * PUSH.T @ value @ MOVES
        )
        value = COST + GAMMA * MOVES.T @ value @ (MOVES - PUSH @ gain)
    return gain[0]


def transitions(random: np.random.Generator, rows: int = 128) -> ReplaySample:
    """One step each from random states with random actions; the problem never ends."""
    states, actions = random.uniform(-1, 1, (rows, 2)), random.uniform(-1, 1, (rows, 1))
    later = states @ MOVES.T + actions @ PUSH.T
    cost = ((states @ COST) * states).sum(1) + EFFORT * actions[:, 0] ** 2

    def tensor(values: Floats) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32))

    items = Transitions(
        obs={"obs": tensor(states)},
        actions={"action": tensor(actions)},
        returns=tensor(-cost),
        discount=torch.full((rows,), GAMMA),
        next_obs={"obs": tensor(later)},
        scaled_probability=torch.ones(rows, dtype=torch.float64),
    )
    return ReplaySample(items, 0.4, trained=rows)


def learner_of(algo: str) -> CriticsLearner[Any]:
    more: dict[str, Any] = {
        "model": ModelConfig(hidden_sizes=(64, 64), activation="elu"),
        "learning_rate": 3e-3,
        "lr_schedule": "linear",
        "train_for_env_steps": 1,
    }
    little = {"target_entropy": -3.0, "initial_temperature": 0.1}  # costs next to nothing
    if algo == "crossq":
        return crossq_learner(crossq_config(**more, **little), SPEC)
    more["target_rate"] = 0.1
    if algo == "sac":
        return sac_learner(sac_config(**more, **little), SPEC)
    return td3_learner(td3_config(**more, target_noise=0.0), SPEC)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sac", "crossq", "td3"])
def test_the_gain_is_that_of_riccatis_equation(algo: str) -> None:
    learner, random, updates = learner_of(algo), np.random.default_rng(1), 3000
    for done in range(updates):
        learner.update(transitions(random), done / updates)
    states = random.uniform(-1, 1, (500, 2)).astype(np.float32)
    parameters = learner._parameters(learner.model, {"obs": torch.from_numpy(states)})
    actions = parameters.detach()[:, :1].tanh().numpy()
    wanted = -states @ best_gain()[:, None]
    error = np.sqrt(((actions - wanted) ** 2).mean() / (wanted**2).mean())
    assert error < 0.08

"""What the learner of soft actor-critic learns where the best policy is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sampleforge.algorithms.sac.learner import SacLearner, draw
from sampleforge.models.config import ModelConfig
from tests.support.sac import sac_config, sac_learner, sample


def bandit(target_entropy: float, updates: int) -> SacLearner:
    """A learner of a bandit whose reward is -2 (y - 0.3) ** 2 - 2 (z + 0.5) ** 2 for an action
    (y, z) in units of its bounds."""
    config = sac_config(
        model=ModelConfig(hidden_sizes=(32, 32)),
        learning_rate=1e-2,
        initial_temperature=0.08,
        lr_schedule="linear",
        train_for_env_steps=1,
        target_entropy=target_entropy,
    )
    learner, random = sac_learner(config), np.random.default_rng(0)
    for seed in range(updates):
        unit = random.uniform(-1, 1, (128, 2)).astype(np.float32)
        reward = -2 * (unit[:, 0] - 0.3) ** 2 - 2 * (unit[:, 1] + 0.5) ** 2
        action = np.array([0.0, 2.5]) + unit * np.array([2.0, 2.5])
        learner.update(
            sample(
                128,
                seed,
                actions={"action": torch.from_numpy(action.astype(np.float32))},
                returns=torch.from_numpy(reward.astype(np.float32)),
                discount=torch.zeros(128),
                obs={"obs": torch.zeros(128, 3)},
            ),
            seed / updates,
        )
    return learner


@pytest.mark.slow
def test_a_bandit_is_solved_by_the_boltzmann_policy_of_the_asked_entropy() -> None:
    """exp(-2 (y - m) ** 2 / temperature) is normal with the variance temperature / 4, whose entropy
    is that which was asked for."""
    wanted = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.1))
    learner = bandit(wanted, 3000)
    parameters = learner._parameters(learner.model, {"obs": torch.zeros(20_000, 3)}).detach()
    drawn = draw(parameters, torch.randn(20_000, 2)).actions
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.3, -0.5]), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.1, 0.1]), rtol=0.05, atol=0)
    assert float(learner.temperature().detach()) == pytest.approx(0.04, rel=0.25)


def test_a_step_that_is_not_finite_is_skipped_and_counted() -> None:
    learner = sac_learner(sac_config())
    before = [p.detach().clone() for p in learner.critics.parameters()]
    bad = sample(16, returns=torch.full((16,), torch.inf))
    assert learner.update(bad, 0.0).metrics["skipped_steps"] == 1
    assert all(map(torch.equal, before, learner.critics.parameters()))
    assert learner.version == 1
    assert learner.update(sample(), 0.0).metrics["skipped_steps"] == 0


def test_the_policy_moves_in_one_of_so_many_steps() -> None:
    learner = sac_learner(sac_config(actor_interval=3))
    moved = []
    for _ in range(6):
        before = learner.model.policy_weight.detach().clone()
        learner.update(sample(), 0.0)
        moved.append(not torch.equal(before, learner.model.policy_weight))
    assert moved == [True, False, False, True, False, False]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_fixed_temperature_stays_while_all_else_learns(by_hand: bool) -> None:
    model = ModelConfig(hidden_sizes=(8, 8), layer_norm=not by_hand)
    config = sac_config(model=model, learn_temperature=False, initial_temperature=0.2)
    learner = sac_learner(config)
    assert learner._by_hand == by_hand
    before = learner.temperature().clone(), learner.model.policy_weight.detach().clone()
    for seed in range(3):
        metrics = learner.update(sample(seed=seed), 0.0).metrics
    assert torch.equal(learner.temperature(), before[0])
    assert metrics["temperature"] == pytest.approx(0.2)
    assert not torch.equal(learner.model.policy_weight, before[1])


def test_a_state_continues_bit_by_bit() -> None:
    one, other = sac_learner(sac_config()), sac_learner(sac_config(initial_temperature=3.0))
    for seed in range(3):
        one.update(sample(seed=seed), 0.0)
    other.load(*one.state())
    for learner in (one, other):
        learner.update(sample(seed=7), 0.0)
    theirs = other.state()[0]
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.state()[0].items())

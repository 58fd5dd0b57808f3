"""Policies with fixed weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import FrozenPolicy
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from tests.support.learners import config, model_of
from tests.support.q_learning import network

COLUMNS = {"log_prob", "parameters", "independent"}


def actor_critic() -> ActorCritic:
    return model_of(config(env="CartPole-v1"))


@pytest.mark.parametrize("model", [actor_critic(), network(1)], ids=["actor-critic", "Q-network"])
def test_a_policy_whose_steps_are_recorded_acts_greedily_unless_asked_to_sample(
    model: ActorCritic | QNetwork,
) -> None:
    size = 4 if isinstance(model, ActorCritic) else 3
    obs = {"obs": torch.randn(10_000, size, generator=torch.Generator().manual_seed(0)).numpy()}
    state, first = torch.zeros(10_000, 0), torch.ones(10_000, dtype=torch.bool).numpy()
    with torch.no_grad():
        output = model.step({"obs": torch.from_numpy(obs["obs"])}, state, torch.from_numpy(first))
    best = output.parameters.argmax(-1).numpy()
    policy = FrozenPolicy(model, recorded=True)
    for stochastic in (False, True, False):
        generator = torch.Generator().manual_seed(3)
        actions, _ = policy.act(obs, state, first, stochastic=stochastic, generator=generator)
        taken = actions["action"]
        assert (taken == best).all() != stochastic
        assert set(policy.columns) == (COLUMNS if stochastic else set())
        if stochastic:
            columns = policy.columns
            each = torch.from_numpy(columns["parameters"]).log_softmax(-1).numpy()
            np.testing.assert_allclose(columns["log_prob"], each[range(10_000), taken], atol=1e-5)
            assert columns["independent"].all()


@pytest.mark.parametrize("model", [actor_critic(), network(1)], ids=["actor-critic", "Q-network"])
def test_nothing_is_kept_of_steps_that_are_not_recorded(model: ActorCritic | QNetwork) -> None:
    size = 4 if isinstance(model, ActorCritic) else 3
    policy = FrozenPolicy(model)
    obs, first = {"obs": np.zeros((2, size), np.float32)}, np.ones(2, np.bool_)
    policy.act(obs, torch.zeros(2, 0), first, stochastic=True)
    assert policy.columns == {}

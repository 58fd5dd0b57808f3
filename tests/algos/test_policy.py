"""Policies with fixed weights."""

from __future__ import annotations

import pytest
import torch

from sampleforge.algos.policy import ExploringPolicy, FrozenPolicy
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from tests.support.learners import config, model_of
from tests.support.q_learning import network


def actor_critic() -> ActorCritic:
    return model_of(config(env="CartPole-v1"))


@pytest.mark.parametrize("model", [actor_critic(), network(1)], ids=["actor-critic", "Q-network"])
def test_a_policy_whose_steps_are_recorded_acts_greedily_unless_asked_to_sample(
    model: ActorCritic | QNetwork,
) -> None:
    size = 4 if isinstance(model, ActorCritic) else 3
    obs = {"obs": torch.randn(10_000, size, generator=torch.Generator().manual_seed(0)).numpy()}
    state, first = torch.zeros(10_000, 0), torch.ones(10_000, dtype=torch.bool).numpy()
    plain, recorded = FrozenPolicy(model), ExploringPolicy(model)
    for stochastic in (False, True):
        taken = [
            policy.act(
                obs,
                state,
                first,
                stochastic=stochastic,
                generator=torch.Generator().manual_seed(3),
            )[0]["action"].tolist()
            for policy in (plain, recorded)
        ]
        assert taken[0] == taken[1]

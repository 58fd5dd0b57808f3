"""Probabilities of recorded actions under a policy: of every kind of action, core and network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_network import EVALUATION_EPSILON, QNetwork
from sampleforge.spec import ActionSpec
from sampleforge.tools.estimate.action_probabilities import SAMPLES, action_probabilities
from tests.support.recorded import BOX, DISCRETE, MULTI, OBSERVATIONS, actor_critic, recorded

LENGTHS = [5, 2, 7]


def columns(actions: dict[str, ActionSpec]) -> tuple[dict[str, torch.Tensor], ...]:
    episodes = recorded(LENGTHS, actions)
    obs = np.concatenate([e.observations["obs"][:-1] for e in episodes])
    taken = np.concatenate([e.actions["action"] for e in episodes])
    return {"obs": torch.from_numpy(obs)}, {"action": torch.from_numpy(taken)}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("actions", [DISCRETE, MULTI, BOX], ids=["discrete", "multi", "box"])
def test_they_are_those_with_which_the_policy_acts(
    actions: dict[str, ActionSpec], core: Any
) -> None:
    """Episode by episode, with the recurrent state that the policy would have."""
    model = actor_critic(actions, core=core).eval()
    obs, taken = columns(actions)
    found = action_probabilities(
        model, actions, obs, taken, np.array(LENGTHS), greedy=False, seed=0
    )
    begin = 0
    for length in LENGTHS:
        rows = slice(begin, begin + length)
        own = obs["obs"][rows].unsqueeze(1)
        first = torch.arange(length).unsqueeze(1) == 0
        with torch.no_grad():
            parameters = model({"obs": own}, torch.zeros(1, model.state_size), first).parameters
        distribution = model.distribution(parameters.squeeze(1), {"obs": own.squeeze(1)})
        expected = distribution.log_prob({"action": taken["action"][rows]})
        assert found.log_prob[rows] == pytest.approx(expected.numpy(), abs=1e-5)
        begin += length
    assert found.probability.sum(-1).allclose(torch.ones(14))
    choices = 4 if actions is DISCRETE else SAMPLES
    assert found.choices.shape[1] == found.probability.shape[1] == choices


def test_a_greedy_policy_takes_one_action_only() -> None:
    model = actor_critic().eval()
    obs, taken = columns(DISCRETE)
    with torch.no_grad():
        best = model.step(obs, torch.zeros(14, 0), torch.ones(14, dtype=torch.bool)).parameters
    same = taken["action"] == best.argmax(-1)
    assert 0 < same.sum() < 14
    lengths = np.array(LENGTHS)
    found = action_probabilities(model, DISCRETE, obs, taken, lengths, greedy=True, seed=0)
    assert found.log_prob.tolist() == [0.0 if each else -np.inf for each in same]
    box_obs, box = columns(BOX)
    with pytest.raises(ConfigError, match="--no-stochastic"):
        action_probabilities(actor_critic(BOX), BOX, box_obs, box, lengths, greedy=True, seed=0)


def test_a_q_network_is_greedy_but_for_its_evaluation_epsilon() -> None:
    torch.manual_seed(0)
    model = QNetwork(
        ModelConfig(hidden_sizes=(8,)), OBSERVATIONS, DISCRETE, dueling=True, head_size=0
    ).eval()
    obs, taken = columns(DISCRETE)
    found = action_probabilities(
        model, DISCRETE, obs, taken, np.array(LENGTHS), greedy=False, seed=0
    )
    with torch.no_grad():
        best = model.q_values(obs).argmax(-1) == taken["action"]
    epsilon = EVALUATION_EPSILON
    expected = np.where(best.numpy(), 1 - epsilon + epsilon / 4, epsilon / 4)
    assert np.exp(found.log_prob) == pytest.approx(expected, rel=1e-4)

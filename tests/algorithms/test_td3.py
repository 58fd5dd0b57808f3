"""The updates of TD3 are those of the paper (arXiv 1802.09477, algorithm 1), written out in
float64."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.td3.algorithm import TD3
from sampleforge.replay.samples import Transitions
from sampleforge.shared.newest import SharedWeights
from sampleforge.topologies.config import Td3Config
from tests.support.sac import (
    SPEC,
    assert_two_take_the_steps_of_one,
    sample,
    td3_config,
    td3_learner,
)

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 5.0])


def policy(actor: Any, obs: Tensor) -> Tensor:
    """The action of a policy for one row, in units of its bounds."""
    x = obs.double()
    for weight, bias in actor.actor.encoder.layers:
        x = (weight @ x + bias).clamp(min=0)
    return torch.tanh(actor.policy_weight @ x + actor.policy_bias)


def value(critics: Any, number: int, obs: Tensor, action: Tensor) -> Tensor:
    """Q of one critic for one row."""
    x, last = torch.cat((obs.double(), action)), len(critics.layers) - 1
    for i, (weight, bias) in enumerate(critics.layers):
        x = weight[number] @ x + bias[number, 0]
        x = x.clamp(min=0) if i < last else x
    return x[0]


@pytest.mark.parametrize("by_hand", [True, False])
def test_gradients_and_targets_of_an_update_are_those_of_the_papers_sums(by_hand: bool) -> None:
    config, batch = td3_config(), sample()
    learner = td3_learner(config)
    assert learner._passes is not None
    learner._passes = learner._passes if by_hand else None
    for seed in range(4):
        learner.update(sample(seed=seed + 5), 0.0)  # so that the targets are others
    actor, critics, target, target_actor = (
        copy.deepcopy(network).double()
        for network in (learner.model, learner.critics, learner.target, learner.target_actor)
    )
    noise, items = learner._new_noise(16)[0].double(), batch.items
    assert isinstance(items, Transitions)
    of_critics = of_actor = torch.zeros((), dtype=torch.float64)
    for b in range(16):
        now, later = items.obs["obs"][b], items.next_obs["obs"][b]
        smooth = (0.2 * noise[b]).clamp(-0.5, 0.5)
        after = (policy(target_actor, later) + smooth).clamp(-1, 1)
        least = min(value(target, i, later, after) for i in range(2))
        wanted = (items.returns[b] + items.discount[b] * least).detach()
        unit = (2 * (items.actions["action"][b] - LOW) / (HIGH - LOW) - 1).double()
        for i in range(2):
            of_critics = of_critics + (value(critics, i, now, unit) - wanted) ** 2 / 2 / 16
        of_actor = of_actor - value(critics, 0, now, policy(actor, now)) / 16
    metrics = learner.update(batch, 0.0).metrics
    assert metrics["loss"] == pytest.approx(float(of_critics.detach()), rel=2e-6)
    assert metrics["actor_loss"] == pytest.approx(float(of_actor.detach()), rel=2e-6)
    trained = [p for p in actor.parameters() if p.requires_grad]
    own = [p for p in learner.model.parameters() if p.requires_grad]
    pairs = [
        *zip(torch.autograd.grad(of_actor, trained, retain_graph=True), own, strict=True),
        *zip(
            torch.autograd.grad(of_critics, list(critics.parameters())),
            learner.critics.parameters(),
            strict=True,
        ),
    ]
    for gradient, parameter in pairs:
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=2e-6, atol=2e-6)
    for old, new, moved in (
        (target, learner.critics, learner.target),
        (target_actor, learner.model, learner.target_actor),
    ):
        for a, b_, c in zip(old.parameters(), new.parameters(), moved.parameters(), strict=True):
            wanted = 0.995 * a + 0.005 * b_.double()
            torch.testing.assert_close(c.double(), wanted, rtol=2e-6, atol=2e-6)


def test_the_policy_and_the_targets_move_in_every_second_step() -> None:
    learner, moved = td3_learner(td3_config()), []
    for _ in range(4):
        networks = learner.model, learner.target, learner.target_actor
        before = [[p.clone() for p in network.parameters()] for network in networks]
        learner.update(sample(), 0.0)
        moved.append(
            [
                any(not torch.equal(*pair) for pair in zip(old, n.parameters(), strict=True))
                for old, n in zip(before, networks, strict=True)
            ]
        )
    assert moved == [[True] * 3, [False] * 3, [True] * 3, [False] * 3]


def test_two_learners_take_the_steps_of_one_with_the_whole_batch() -> None:
    assert_two_take_the_steps_of_one(partial(td3_learner, td3_config()))


@pytest.mark.parametrize(("count", "wanted"), [(1, [0.1]), (2, [0.2, 0.05]), (3, [0.2, 0.1, 0.05])])
def test_rows_explore_by_a_ladder_around_the_noise_of_the_middle_one(
    count: int, wanted: list[float]
) -> None:
    assert TD3.exploration is not None
    found = TD3.exploration(td3_config(), count).tolist()
    assert found == pytest.approx(wanted)


def test_a_stochastic_policy_has_the_noise_of_the_config_also_with_other_weights() -> None:
    before, now = (td3_learner(td3_config(exploration_noise=noise)) for noise in (0.1, 0.5))
    now.load(*before.state())
    assert now.model.log_std is not None
    torch.testing.assert_close(now.model.log_std.exp(), torch.full((2,), 0.5))
    assert not now.model.log_std.requires_grad


def test_actions_are_those_of_the_policy_with_the_noise_of_their_row() -> None:
    config: Td3Config = td3_config(learning_starts=1)
    network = TD3.new_network(config, SPEC)
    ladder = torch.tensor([0.0, 0.05, 0.2])
    place = ActingPlace(torch.Generator().manual_seed(1), ladder=ladder, num_rows=3)
    assert TD3.new_acting is not None
    acting = TD3.new_acting(config, network, SharedWeights(network.state_dict()), place)
    rows = torch.arange(3000) % 3
    obs, no = {"obs": torch.zeros(3000, 3)}, torch.zeros(3000, dtype=torch.bool)
    found = acting.act(obs, torch.zeros(3000, 0), no, rows).actions["action"]
    unit = 2 * (found - LOW) / (HIGH - LOW) - 1
    for row, size in enumerate(ladder.tolist()):
        spread = unit[rows == row].std(0)
        torch.testing.assert_close(spread, torch.full((2,), size), rtol=0.1, atol=1e-6)

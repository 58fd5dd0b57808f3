"""The Q-learner against the literal formulas, and the Q-network's heads and masks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.dqn.loss import dqn_loss, q_targets
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.models.q_network import GreedyActions
from sampleforge.ops.q_learning import rescale, unrescale
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import importance_weights
from sampleforge.shared.newest import SharedWeights
from tests.support.q_learning import ACTIONS, network, transitions, weights_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_targets_are_the_literal_ones(double: bool, rescaled: bool, masked: bool) -> None:
    online, target, batch = network(1, masked), network(2, masked), transitions(masked=masked)
    config = DqnConfig(double=double, value_rescaling=rescaled)
    found = q_targets(online, target, batch, config)
    of_online = online.q_values(batch.next_obs)
    of_target = target.q_values(batch.next_obs)
    for i in range(len(found)):
        allowed = [
            a for a in range(ACTIONS) if not masked or batch.next_obs["action_mask"][i, a]
        ] or list(range(ACTIONS))
        chooser = of_online[i] if double else of_target[i]
        best = max(allowed, key=lambda a: chooser[a].item())
        value = of_target[i, best]
        if rescaled:
            wanted = rescale(batch.returns[i] + batch.discount[i] * unrescale(value))
        else:
            wanted = batch.returns[i] + batch.discount[i] * value
        torch.testing.assert_close(found[i], wanted)
    assert found.isfinite().all()


@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_the_loss_is_the_weighted_huber_loss_and_its_gradient(delta: float) -> None:
    online, target, batch = network(1), network(2), transitions()
    config = DqnConfig(huber_delta=delta)
    output = dqn_loss(online, target, batch, 0.4, config)
    goal = q_targets(online, target, batch, config)
    taken = online.q_values(batch.obs)[range(6), batch.actions["action"]]
    weights = [float(o) ** -0.4 for o in batch.scaled_probability]
    total = 0.0
    for i in range(6):
        error = abs(float(goal[i] - taken[i].detach()))
        linear = delta and error > delta
        each = delta * (error - delta / 2) if linear else error**2 / 2
        total += weights[i] / max(weights) * each
        assert output.errors[i].item() == pytest.approx(error, rel=1e-5)
    assert output.loss.item() == pytest.approx(total / 6, rel=1e-5)
    output.loss.backward()
    assert all(p.grad is None for p in target.parameters()), "targets have no gradient"


def test_importance_weights_are_relative_to_the_largest_of_the_batch() -> None:
    scaled_probability = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    weights, share = importance_weights(scaled_probability, 1.0, lambda: torch.tensor(3))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 0.125]))
    assert share == 1.0
    weights, _ = importance_weights(scaled_probability, 0.0, lambda: torch.tensor(3))
    torch.testing.assert_close(weights, torch.ones(3))


@pytest.mark.parametrize("head_size", [0, 5])
def test_dueling_advantages_have_no_mean(head_size: int) -> None:
    """Q = V + A - mean A: adding a constant to all advantages changes nothing."""
    model = network(3, head_size=head_size)
    obs = {"obs": torch.randn(7, 3)}
    before = model.q_values(obs)
    bias = model.heads.bias if head_size == 0 else model.heads.out[0].bias
    with torch.no_grad():
        bias[:ACTIONS] += 10.0
    torch.testing.assert_close(model.q_values(obs), before, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        (model.heads.bias[-1:] if head_size == 0 else model.heads.out[1].bias).add_(10.0)
    torch.testing.assert_close(model.q_values(obs), before + 10.0, atol=1e-5, rtol=1e-5)


def learner(**kwargs: Any) -> DqnLearner:
    defaults: dict[str, Any] = {
        "batch_size": 6,
        "optimiser": "adam",
        "learning_rate": 1e-2,
        "optimiser_eps": 1e-6,
        "target_update_interval": 3,
    }
    config = DqnConfig(**{**defaults, **kwargs})
    return DqnLearner(network(1), config, LearnerPlace(torch.device("cpu")))


def test_the_target_network_follows_every_so_many_learner_steps() -> None:
    found = learner()
    start = weights_of(found.target)
    for step in range(1, 8):
        found.update(ReplaySample(transitions(seed=step), 0.4), 0.0)
        if step % 3 == 0:
            start = weights_of(found.model)
        assert torch.equal(weights_of(found.target), start)
        assert not torch.equal(weights_of(found.model), weights_of(found.target)) or step % 3 == 0


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_the_learner_learns_and_its_rate_follows_the_schedule(optimiser: str) -> None:
    found = learner(optimiser=optimiser, lr_schedule="linear")
    batch = dataclasses.replace(transitions(), discount=torch.zeros(6))
    first = found.update(ReplaySample(batch, 0.4), 0.0)
    assert first.metrics["learning_rate"] == 1e-2
    for _ in range(300):
        last = found.update(ReplaySample(batch, 0.4), 0.5)
    assert last.metrics["learning_rate"] == pytest.approx(5e-3)
    assert last.metrics["td_error_mean"] < 0.2 * first.metrics["td_error_mean"]
    assert last.errors is not None and last.errors.shape == (6,)


@pytest.mark.parametrize("where", ["returns", "next_obs"])
def test_a_batch_that_is_not_finite_is_skipped(where: str) -> None:
    found, batch = learner(), transitions()
    before = weights_of(found.model)
    if where == "returns":
        batch.returns[1] = torch.inf
    else:
        batch.next_obs["obs"][1] = torch.nan
    skipped = found.update(ReplaySample(batch, 0.4), 0.0)
    assert skipped.errors is None and skipped.metrics["skipped_steps"] == 1.0
    assert torch.equal(weights_of(found.model), before) and found.version == 1
    assert found.update(ReplaySample(transitions(), 0.4), 0.0).errors is not None


def test_exploration_takes_every_allowed_action_alike() -> None:
    mask = torch.tensor([True, False, True, True]).expand(30_000, 4)
    q = torch.tensor([1.0, 9.0, 2.0, 0.0]).expand(30_000, 4)
    chosen = GreedyActions(q, mask).explore(torch.full((30_000,), 0.6), None)
    share = np.bincount(chosen, minlength=4) / 30_000
    np.testing.assert_allclose(share, [0.2, 0.0, 0.6, 0.2], atol=0.015)
    assert (GreedyActions(q, mask).mode()["action"] == 2).all()


def test_every_row_explores_with_its_own_epsilon_and_weights_come_at_intervals() -> None:
    model = network(1)
    weights = SharedWeights(model.state_dict())
    weights.publish(model.state_dict(), 5)
    place = ActingPlace(torch.Generator().manual_seed(0), ladder=torch.tensor([0.0, 1.0]))
    policy = epsilon_greedy(network(2), weights, place, refresh_interval=1500)
    policy.refresh()
    assert policy.version == 5
    obs = {"obs": torch.randn(1, 3).expand(1000, 3)}
    rows = torch.arange(1000) % 2
    nothing = torch.zeros(1000, 0), torch.zeros(1000, dtype=torch.bool)
    acted = policy.act(obs, *nothing, rows)
    best = model.q_values(obs)[0].argmax()
    assert (acted.actions["action"][::2] == best).all()
    assert np.bincount(acted.actions["action"][1::2], minlength=4).min() > 80
    taken = model.q_values(obs)[range(1000), acted.actions["action"].tolist()]
    torch.testing.assert_close(acted.extras["taken"], taken)
    weights.publish(model.state_dict(), 6)
    policy.refresh()
    assert policy.version == 5, "only 1000 of 1500 env steps have passed"
    policy.act(obs, *nothing, rows)
    policy.refresh()
    assert policy.version == 6


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": False, "huber_delta": 0.0},
        {"value_rescaling": True, "huber_delta": 0.3},
    ],
    ids=lambda settings: "-".join(settings) or "default",
)
@pytest.mark.parametrize("dueling", [False, True])
def test_the_gradient_by_hand_is_that_of_autograd(
    dueling: bool, settings: dict[str, Any], masked: bool
) -> None:
    """So are the errors and the metrics, and what a learner learns by them."""
    config = DqnConfig(
        learning_rate=1e-2,
        optimiser="adam",
        optimiser_eps=1e-6,
        target_update_interval=2,
        normalise_returns=False,
        **settings,
    )
    found = []
    for by_hand in (True, False):
        learner = DqnLearner(network(1, masked, dueling), config, LearnerPlace(CPU))
        assert learner._passes is not None
        learner._passes = learner._passes if by_hand else None
        updates = [
            learner.update(ReplaySample(transitions(16, masked, i), 0.4), 0.0) for i in range(5)
        ]
        found.append((updates, weights_of(learner.model), weights_of(learner.target)))
    (ours, *weights), (plain, *expected) = found
    assert not torch.equal(expected[0], weights_of(network(1, masked, dueling)))
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-5)
    for one, other in zip(ours, plain, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-6)
        assert one.errors is not None and other.errors is not None
        np.testing.assert_allclose(one.errors, other.errors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("head_size", "precision"), [(0, "fp32"), (8, "fp32"), (0, "bf16")], ids=str
)
def test_passes_by_hand_are_for_one_linear_head_in_full_precision(
    head_size: int, precision: str
) -> None:
    config = DqnConfig(
        learning_rate=1e-2, optimiser="adam", optimiser_eps=1e-6, target_update_interval=2
    )
    model = network(1, head_size=head_size)
    learner = DqnLearner(model, config, LearnerPlace(CPU, precision))
    assert (learner._passes is not None) == (head_size == 0 and precision == "fp32")
    assert learner.update(ReplaySample(transitions(), 0.4), 0.0).metrics["grad_norm"] > 0

"""What actors say first of their experience, where returns have distributions: priorities of the
learner's kind and size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.finish_rollout import (
    first_errors,
    moved_moments,
    normal_divergence,
    normal_quantile_loss,
)
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.dqn.loss import distributional_loss
from sampleforge.algorithms.learning import LearnerPlace, Update
from sampleforge.models.q_heads import Categorical
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.q_learning import (
    midpoints,
    n_step_windows,
    quantile_huber_loss,
    rescale,
    unrescale,
)
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.workers.metrics import Divergence
from tests.support.apex_graphs import (
    apex_config,
    batches_of,
    build_apex,
    learner_worker,
    serial_rounds,
    with_learner,
)
from tests.support.graphs import spec_of
from tests.support.pairings import network_maker
from tests.support.q_learning import HEADS
from tests.support.random_rollouts import random_rollout


def test_first_priorities_are_losses_of_normal_distributions() -> None:
    """Those of the learner, had its distributions been normal."""
    torch.manual_seed(3)
    atoms = torch.linspace(-10, 10, 81)
    support, count = Categorical(81, -10.0, 10.0, rescaled=False), 400
    mean, target_mean = torch.rand(2, count) * 6 - 3
    std, target_std = torch.rand(2, count) * 1.2 + 0.6
    logits = -((atoms - mean.unsqueeze(1)) ** 2) / (2 * std.unsqueeze(1) ** 2)
    goal = (
        -((atoms - target_mean.unsqueeze(1)) ** 2) / (2 * target_std.unsqueeze(1) ** 2)
    ).softmax(-1)
    divergence = (goal * (goal.log().clamp(min=-99) - logits.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(
        normal_divergence(target_mean, target_std, mean, std, least=0.125),
        divergence,
        rtol=0.02,
        atol=0.01,
    )
    torch.testing.assert_close(support.std(logits), std, rtol=0.02, atol=0)
    normal = torch.distributions.Normal(0.0, 1.0)
    points = normal.icdf(midpoints(51))
    whole = quantile_huber_loss(
        mean.unsqueeze(1) + std.unsqueeze(1) * points,
        target_mean.unsqueeze(1) + target_std.unsqueeze(1) * points,
        1.0,
    )
    found = normal_quantile_loss(mean, std, target_mean, target_std, 1.0)
    torch.testing.assert_close(found, whole / 51, rtol=0.1, atol=0.02)


def test_squashed_moments_are_those_of_squashed_samples() -> None:
    sample = 3.0 + 0.1 * torch.randn(200_000, dtype=torch.float64)  # squashed returns
    moved = rescale(2.0 + 0.9 * unrescale(sample))
    one = torch.ones((), dtype=torch.float64)
    mean, std = moved_moments(2.0 * one, 0.9 * one, 3.0 * one, 0.1 * one, rescaled=True)
    assert mean.item() == pytest.approx(moved.mean().item(), rel=1e-3)
    assert std.item() == pytest.approx(moved.std().item(), rel=1e-2)


@pytest.mark.parametrize("head", HEADS)
def test_first_priorities_are_of_the_windows_of_their_rollout(head: str) -> None:
    config = DqnConfig(**HEADS[head], gamma=0.9)
    rollout = random_rollout(5)
    rng = np.random.default_rng(1)
    acted = {
        name: rng.random((20, 6)).astype(np.float32) + 0.2
        for name in ("value", "taken", "value_std", "taken_std")
    }
    windows = n_step_windows(**rollout, n=3, gamma=0.9)
    found = first_errors(config, windows, rollout["reward"], 0.9, acted)
    assert found.shape == (20, 6) and found.dtype == np.float32 and (found >= 0).all()
    for t, row in itertools.product(range(17), range(6)):  # windows of 3 that end within
        if windows.steps[t, row] == 0:
            continue
        after, discount = t + windows.steps[t, row], torch.tensor(windows.discount[t, row])
        goes_on = 1.0 if discount > 0 else 0.0
        mean = (
            torch.tensor(windows.returns[t, row]) + discount * goes_on * acted["value"][after, row]
        )
        std = discount * goes_on * acted["value_std"][after, row]
        ours = torch.tensor(acted["taken"][t, row]), torch.tensor(acted["taken_std"][t, row])
        if head == "c51":
            wanted = normal_divergence(mean.clamp(-1.5, 3.0), std, *ours, least=4.5 / 6 / 2)
        else:
            wanted = normal_quantile_loss(*ours, mean, std, config.huber_delta)
        assert found[t, row] == pytest.approx(wanted.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("head", "inference"), [("c51", "inline"), ("quantile", "worker")])
def test_first_priorities_are_those_of_a_learner(
    monkeypatch: pytest.MonkeyPatch, head: str, inference: str, rescaled: bool
) -> None:
    """A learner with the actors' own network, whose distributions are normal, gives transitions
    the priorities that they came with. Not all: those at the end of a rollout are guesses."""
    chosen = apex_config(
        value_distribution=head,
        **({"v_min": -10.0, "v_max": 20.0} if head == "c51" else {}),
        env="CartPole-v1",
        inference=inference,
        value_rescaling=rescaled,
        dueling=False,
        double=False,
        rollout=20,
        replay_capacity=6000,  # nothing is evicted
        gamma=0.9,
    )
    spec = spec_of(chosen)
    chosen = resolve_defaults(chosen, spec)
    graph, _ = build_apex(chosen)
    learner = DqnLearner(
        network_maker(chosen, spec, 1)(), chosen, LearnerPlace(torch.device("cpu"))
    )
    learner.update = lambda *_: Update({}, 0)  # type: ignore[method-assign]
    monkeypatch.setattr(Divergence, "check", lambda *_, **__: None)  # it takes no step on purpose
    make_normal(learner.model)
    graph.groups[0].weights.publish(learner.model.state_dict(), 1)
    with_learner(graph, lambda: learner)
    sample_requests = batches_of(graph).requests
    pairs = []
    for _ in serial_rounds(graph, 60):
        worker = learner_worker(graph)
        if worker._source.samples._ready:
            _, request = worker._source.samples._ready[0]
            items = sample_requests.items[request]
            batch, *_ = worker._source.reader.reader.read(
                items,
                sample_requests.generations[request],
                sample_requests.scaled_probability[request],
            )
            model = learner.model
            later = distributional_loss(model, model, batch, 0.4, chosen).errors
            first = worker._source.reader.reader._slots.extras["td_error"].reshape(-1)[items]
            pairs.append((first, later.numpy()))
    ours, theirs = np.concatenate(pairs, 1)
    assert len(ours) > 200
    ratios = ours / theirs
    low, high = (0.5, 2.0) if rescaled else (0.9, 1.1)  # squashing is taken to first order
    assert low < np.median(ratios) < high
    assert np.mean((ratios > low) & (ratios < high)) > 0.8
    assert np.corrcoef(ours, theirs)[0, 1] > 0.7


def make_normal(model: QNetwork) -> None:
    """Every action's distribution a normal one of width 1, around a mean linear in the features."""
    heads, support = model.heads, model.value_distribution
    assert isinstance(heads, torch.nn.Linear) and support is not None
    slopes = torch.linspace(-1.0, 1.0, heads.in_features)
    slopes = torch.stack([slopes + 0.5, slopes - 0.5]).unsqueeze(1)  # [A, 1, F]
    if isinstance(support, Categorical):  # logits -(z - mean)^2 / 2, less what all have
        weight = slopes * support.atoms.view(1, -1, 1)
        bias = -support.atoms.square() / 2
    else:
        weight = slopes.expand(-1, support.size, -1)
        bias = torch.distributions.Normal(0.0, 1.0).icdf(midpoints(support.size))
    with torch.no_grad():
        heads.weight.copy_(weight.reshape(heads.weight.shape))
        heads.bias.copy_(bias.repeat(2))

"""The updates of CrossQ are those of the paper (arXiv 1902.05605), written out in float64."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sampleforge.algorithms.averaging import DataParallel
from sampleforge.algorithms.experience import Share
from sampleforge.algorithms.sac.crossq_learner import CrossqLearner
from sampleforge.algorithms.sac.crossq_passes import BatchRenormPasses, RunningRenormPasses
from sampleforge.algorithms.sac.learner import draw
from sampleforge.models.batch_renorm import (
    EPS,
    FARTHEST,
    MOST_RATIO,
    MOST_SHIFT,
    RATE,
    WARM_UP,
    BatchRenorm,
)
from sampleforge.models.config import ModelConfig
from sampleforge.peers.group import RankGroup
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from tests.support.rank_threads import on_ranks
from tests.support.sac import crossq_config, crossq_learner, sample

LOW, HIGH = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 5.0])


def normalised(norm: Any, number: int, x: Tensor, training: bool, seen: list[Tensor]) -> Tensor:
    """Algorithm 1 of batch renormalisation (arXiv 1702.03275) for rows [B, F], one network."""
    usual = torch.sqrt(norm.var[number, 0] + EPS)
    if not training:
        y = ((x - norm.mean[number, 0]) / usual).clamp(-FARTHEST, FARTHEST)
        return norm.weight[number, 0] * y + norm.bias[number, 0]
    mean = sum(row for row in x) / len(x)
    var = sum((row - mean) ** 2 for row in x) / len(x)
    seen += [mean.detach(), var.detach()]
    std = torch.sqrt(var + EPS)
    r, d = torch.ones(()), torch.zeros(())
    if float(norm.batches) >= WARM_UP:
        r = (std.detach() / usual).clamp(1 / MOST_RATIO, MOST_RATIO)
        d = ((mean.detach() - norm.mean[number, 0]) / usual).clamp(-MOST_SHIFT, MOST_SHIFT)
    y = ((x - mean) / std * r + d).clamp(-FARTHEST, FARTHEST)
    return norm.weight[number, 0] * y + norm.bias[number, 0]


def values(
    critics: Any, number: int, x: Tensor, training: bool, seen: list[Tensor] | None = None
) -> Tensor:
    """Q [B] of one critic for rows of features beside actions."""
    last = len(critics.layers) - 1
    for i, (weight, bias) in enumerate(critics.layers):
        x = normalised(critics.renorms[i], number, x, training, [] if seen is None else seen)
        x = x @ weight[number].T + bias[number, 0]
        x = x.clamp(min=0) if i < last else x
    return x[:, 0]


def policy(actor: Any, obs: Tensor) -> Tensor:
    x = obs.double()
    for weight, bias in actor.actor.encoder.layers:
        x = (x @ weight.T + bias).clamp(min=0)
    return x @ actor.policy_weight.T + actor.policy_bias


def learned(batches: int, by_hand: bool, **more: Any) -> CrossqLearner:
    """A learner after some updates, whose statistics are of so many batches."""
    learner = crossq_learner(crossq_config(**more))
    assert learner._passes is not None
    learner._passes = learner._passes if by_hand else None
    for norm in learner._norms:
        norm.batches.fill_(float(batches))
    for seed in range(3):
        learner.update(sample(seed=seed + 5), 0.0)
    assert learner.version % 3 == 0, "the next one moves the policy"
    return learner


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("batches", [0, WARM_UP])
@pytest.mark.parametrize("by_hand", [True, False])
def test_gradients_and_statistics_of_an_update_are_those_of_the_papers_sums(
    by_hand: bool, batches: int, weighted: bool
) -> None:
    """Of observations far from the running statistics, so that r and d are at their limits."""
    learner = learned(batches, by_hand, **({"priority_alpha": 0.6} if weighted else {}))
    batch = sample()
    items = batch.items
    assert isinstance(items, Transitions)
    items.obs["obs"][:, 0] += 40.0
    items.obs["obs"][:, 1] *= 10.0
    items.next_obs["obs"][:, 1] *= 10.0
    drawing = learner._drawing(batch)
    weights = torch.ones(16) if drawing.weights is None else drawing.weights
    actor, critics = (copy.deepcopy(n).double() for n in (learner.model, learner.critics))
    temperature, noise = learner.temperature().detach().double(), drawing.noise.double()
    unit = (2 * (items.actions["action"] - LOW) / (HIGH - LOW) - 1).double()
    now, later = items.obs["obs"].double(), items.next_obs["obs"].double()
    after = draw(policy(actor, later), noise[0])
    drawn = draw(policy(actor, now), noise[1])
    both = torch.cat((torch.cat((now, unit), 1), torch.cat((later, after.actions.detach()), 1)))
    seen: list[list[Tensor]] = [[], []]
    found = [values(critics, i, both, True, seen[i]) for i in range(2)]
    least = torch.minimum(found[0][16:], found[1][16:]) - temperature * after.log_prob
    wanted = (items.returns.double() + items.discount.double() * least).detach()
    of_critics = sum((weights * (q[:16] - wanted) ** 2 / 2).sum() / 16 for q in found)
    assert isinstance(of_critics, Tensor)
    x = torch.cat((now, drawn.actions), 1)
    smallest = torch.minimum(*(values(critics, i, x, False) for i in range(2)))
    of_actor = (temperature * drawn.log_prob - smallest).mean()

    metrics = learner.update(batch, 0.0).metrics
    assert metrics["loss"] == pytest.approx(float(of_critics.detach()), rel=5e-6)
    assert metrics["actor_loss"] == pytest.approx(float(of_actor.detach()), rel=5e-6)
    for loss, network, own in (
        (of_critics, critics, learner.critics),
        (of_actor, actor, learner.model),
    ):
        gradients = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
        for gradient, parameter in zip(gradients, own.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad.double(), gradient, rtol=5e-6, atol=2e-6)
    for layer, norm in enumerate(learner._norms):
        old: Any = critics.renorms[layer]
        assert float(norm.batches) == float(old.batches) + 1
        for number in range(2):
            mean, var = seen[number][2 * layer : 2 * layer + 2]
            for new, before, of_batch in ((norm.mean, old.mean, mean), (norm.var, old.var, var)):
                if new is norm.var:
                    of_batch = of_batch.clamp(max=MOST_RATIO**2 * (before[number, 0] + EPS))
                moved = (1 - RATE) * before[number, 0] + RATE * of_batch
                torch.testing.assert_close(new[number, 0].double(), moved, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_rare_numbers_are_clipped_and_the_gradient_of_what_is_clipped_is_zero(
    training: bool,
) -> None:
    """By hand as in torch. One row in 400 is 20 deviations from the others."""
    norm = BatchRenorm(1, 3).train(training)
    for parameter in (norm.weight, norm.bias):
        parameter.grad = torch.zeros_like(parameter)
        torch.nn.init.normal_(parameter)
    norm.var.fill_(0.2)
    x = torch.randn(1, 400, 3)
    x[0, 7, 1], by_outputs = 1e3, torch.randn(200, 3)
    x.requires_grad_()
    passes = (BatchRenormPasses if training else RunningRenormPasses)(norm, 0)
    outputs = norm(x)[0]
    torch.testing.assert_close(passes.forward(x[0].detach()), outputs)
    farthest = float((norm.bias + FARTHEST * norm.weight).detach()[0, 0, 1])
    assert float(outputs.detach()[7, 1]) == pytest.approx(farthest, rel=1e-6)
    half = (outputs[:200] * by_outputs).sum()  # the others have a gradient of 0
    by_inputs, by_weight, by_bias = torch.autograd.grad(half, (x, norm.weight, norm.bias))
    if training:
        passes.set_gradients(by_outputs)
        torch.testing.assert_close(norm.weight.grad, by_weight)
        torch.testing.assert_close(norm.bias.grad, by_bias)
    else:
        assert by_inputs[0, 7, 1] == 0
        by_outputs = torch.cat((by_outputs, torch.zeros_like(by_outputs)))
    torch.testing.assert_close(passes.input_gradient(by_outputs), by_inputs[0])


def test_a_far_number_moves_the_variance_as_little_as_the_limit_allows() -> None:
    norm = BatchRenorm(1, 2)
    x = torch.randn(1, 512, 2)
    x[0, 0, 0] = 1e4
    norm(x)
    norm.follow()
    assert norm.batch_var[0, 0, 0] > 1e5 and norm.var[0, 0, 0] < 1.1


@pytest.mark.parametrize(
    ("offset", "std"), [(0.0, 1e3), (1e3, 1.0), (1e3, 0.1), (100.0, 0.0), (-5.0, 30.0)]
)
def test_running_statistics_become_those_of_the_data(offset: float, std: float) -> None:
    """Then both modes make the same of them."""
    norm, random = BatchRenorm(1, 1), torch.Generator().manual_seed(1)
    for _ in range(2500):
        x = offset + std * torch.randn(1, 64, 1, generator=random)
        by_batch = norm.train()(x)
        norm.follow()
    by_running = norm.eval()(x)
    torch.testing.assert_close(by_running, by_batch, rtol=0.1, atol=0.5)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_batch_that_is_not_learned_from_leaves_the_statistics(by_hand: bool) -> None:
    learner = learned(0, by_hand)
    before = {name: tensor for name, tensor in learner.state()[0].items() if "critics/" in name}
    assert any("renorm_" in name for name in before)
    bad = sample(returns=torch.full((16,), torch.inf))
    assert learner.update(bad, 0.0).metrics["skipped_steps"] == 1
    after = learner.state()[0]
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_state_continues_bit_by_bit() -> None:
    one, other = learned(0, True), crossq_learner(crossq_config(initial_temperature=3.0))
    other.load(*one.state())
    for learner in (one, other):
        for seed in range(4):
            learner.update(sample(seed=seed), 0.0)
    theirs = other.state()[0]
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.state()[0].items())


def test_the_policy_moves_in_every_third_step_and_there_are_no_target_networks() -> None:
    learner, moved = crossq_learner(crossq_config()), []
    assert learner.target is learner.critics
    assert not any(name.startswith("target/") for name in learner.state()[0])
    for _ in range(6):
        before = learner.model.policy_weight.detach().clone()
        learner.update(sample(), 0.0)
        moved.append(not torch.equal(before, learner.model.policy_weight))
    assert moved == [True, False, False, True, False, False]


@pytest.mark.parametrize("more", [{}, {"layer_norm": True}, {"activation": "silu"}])
def test_it_learns_with_any_activation_and_norm(more: dict[str, Any]) -> None:
    learner = crossq_learner(crossq_config(model=ModelConfig(hidden_sizes=(8, 8), **more)))
    losses = [learner.update(sample(), 0.0).metrics["loss"] for _ in range(200)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("scale", [1.0, 1e-2])
@pytest.mark.parametrize("first", [8, 12, 16])
def test_two_learners_have_the_same_weights_and_the_statistics_of_both_parts(
    first: int, scale: float
) -> None:
    """Each normalises its part by the statistics of the part; also where the first has ``first`` of
    16 transitions and the second the rest, or none, which is told by a row of zeros."""

    def numbered(seed: int) -> ReplaySample:
        batch = sample(16, seed)
        assert isinstance(batch.items, Transitions)
        for obs in (batch.items.obs, batch.items.next_obs):
            obs["obs"] = 300.0 + scale * obs["obs"]
        return batch

    def part(batch: ReplaySample, rank: int) -> ReplaySample:
        items = batch.items
        assert isinstance(items, Transitions)
        if rank and first == 16:
            return replace(batch, items=items.blank())
        which = (torch.arange(16) >= first) == bool(rank)
        return replace(batch, items=items.pick(which))

    def learn(group: RankGroup) -> tuple[list[Tensor], list[Tensor]]:
        config, share = crossq_config(), Share(group.rank, 2)
        learner = crossq_learner(config, averaging=DataParallel(group), share=share)
        for seed in range(40):
            learner.update(part(numbered(seed), group.rank), 0.0)
        norms = [part.clone() for norm in learner._norms for part in (norm.mean, norm.var)]
        parameters = (*learner.model.parameters(), *learner.critics.parameters())
        return [p.detach().clone() for p in parameters], norms

    (weights, norms), (others, their_norms) = on_ranks(2, learn)
    for one, other in zip((*weights, *norms), (*others, *their_norms), strict=True):
        assert torch.equal(one, other)
    alone = crossq_learner(crossq_config())
    for seed in range(40):
        alone.update(numbered(seed), 0.0)
    # The observations in the first layer's inputs are the same, whatever the weights are.
    for mine, theirs in zip((alone._norms[0].mean, alone._norms[0].var), norms[:2], strict=True):
        torch.testing.assert_close(theirs[..., :3], mine[..., :3], rtol=1e-4, atol=1e-6)


def test_an_encoder_of_the_critics_stays_in_training_mode() -> None:
    learner = crossq_learner(crossq_config())
    learner.update(sample(), 0.0)
    assert learner.critics.encoder.training and not any(n.training for n in learner._norms)

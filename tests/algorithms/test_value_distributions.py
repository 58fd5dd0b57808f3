"""Distributions of returns against the literal sums of the papers: projection, losses,
priorities, means; and the refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.loss import distributional_loss
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_heads import Quantiles, value_distribution
from sampleforge.models.q_network import QNetwork
from sampleforge.ops.q_learning import midpoints, project, quantile_huber_loss, rescale, unrescale
from sampleforge.replay.samples import Transitions, importance_weights
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import apex_config
from tests.support.graphs import spec_of
from tests.support.q_learning import ACTIONS, DISCRETE, HEADS, MASKED, OBSERVATIONS, transitions


def network(config: DqnConfig, seed: int, masked: bool = False) -> QNetwork:
    torch.manual_seed(seed)
    model = ModelConfig(encoder="mlp", hidden_sizes=(8,), normalise_observations=False)
    return QNetwork(
        model,
        MASKED if masked else OBSERVATIONS,
        DISCRETE,
        dueling=config.dueling,
        head_size=config.head_size or 0,
        value_distribution=value_distribution(config, bool(config.value_rescaling)),
    )


# ---- the sums ----


def test_the_projection_is_the_literal_sum() -> None:
    atoms = torch.linspace(-1.0, 2.0, 7)
    torch.manual_seed(0)
    positions = torch.randn(9, 7) * 2
    positions[0] = atoms  # right on them
    positions[1] = 0.7  # an end of an episode: all in one place
    positions[2], positions[3] = -9.0, 9.0
    probabilities = torch.rand(9, 7).softmax(-1)
    found = project(positions, probabilities, atoms)
    for b in range(9):
        for i in range(7):
            literal = 0.0
            for j in range(7):
                clipped = min(max(float(positions[b, j]), -1.0), 2.0)
                share = 1 - abs(clipped - float(atoms[i])) / 0.5
                literal += min(max(share, 0.0), 1.0) * float(probabilities[b, j])
            assert found[b, i].item() == pytest.approx(literal, abs=1e-6)
    torch.testing.assert_close(found.sum(-1), torch.ones(9))
    torch.testing.assert_close(found[0], probabilities[0])
    assert (found[1] @ atoms).item() == pytest.approx(0.7), "means within the atoms are kept"
    assert found[2, 0].item() == pytest.approx(1.0) and found[3, -1].item() == pytest.approx(1.0)


@pytest.mark.parametrize("kappa", [0.0, 0.4, 1.0])
def test_the_quantile_loss_is_the_literal_double_sum(kappa: float) -> None:
    torch.manual_seed(1)
    quantiles, targets = torch.randn(4, 5), torch.randn(4, 3)
    found = quantile_huber_loss(quantiles, targets, kappa)
    for b in range(4):
        literal = 0.0
        for i, j in itertools.product(range(5), range(3)):
            u = float(targets[b, j] - quantiles[b, i])
            tau = (2 * (i + 1) - 1) / (2 * 5)
            if kappa == 0:
                size = abs(u)
            elif abs(u) <= kappa:
                size = u * u / 2 / kappa
            else:
                size = (abs(u) - kappa / 2) * kappa / kappa
            literal += abs(tau - (u < 0)) * size / 3
        assert found[b].item() == pytest.approx(literal, rel=1e-5)


def test_the_quantile_loss_is_least_at_the_quantiles() -> None:
    torch.manual_seed(2)
    sample = torch.randn(4000)
    quantiles = torch.zeros(5, requires_grad=True)
    descent = torch.optim.Adam([quantiles], lr=0.02)
    for _ in range(400):
        descent.zero_grad()
        quantile_huber_loss(quantiles, sample, 0.0).backward()
        descent.step()
    wanted = torch.quantile(sample, midpoints(5))
    torch.testing.assert_close(quantiles.detach(), wanted, atol=0.05, rtol=0)


# ---- the losses ----


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_the_literal_one(head: str, double: bool, rescaled: bool, masked: bool) -> None:
    config = DqnConfig(**HEADS[head], double=double, value_rescaling=rescaled, huber_delta=0.5)
    online, target = network(config, 1, masked), network(config, 2, masked)
    batch = transitions(masked=masked)
    output = distributional_loss(online, target, batch, 0.4, config)
    (weights, _), total = importance_weights(batch.scaled_probability, 0.4, batch.count), 0.0
    literal = literal_categorical if head == "c51" else literal_quantiles
    for i in range(6):
        each, priority = literal(i, best_after(i, online, target, batch, config), online, target,
                                 batch, config)  # fmt: skip
        total += float(weights[i]) * each / 6
        assert output.errors[i].item() == pytest.approx(priority, rel=1e-3, abs=1e-5)
    assert output.loss.item() == pytest.approx(total, rel=1e-4)
    output.loss.backward()
    assert all(p.grad is None for p in target.parameters()), "targets have no gradient"
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in online.parameters())


def mean_return(outputs: torch.Tensor, config: DqnConfig) -> float:
    """Of one action's outputs [K], literally."""
    if config.value_distribution == "quantile":
        values = [raw(float(x), config) for x in outputs]
        return sum(values) / len(values)
    shares = outputs.exp() / outputs.exp().sum()
    return sum(float(p) * raw(z, config) for p, z in zip(shares, atoms_of(config), strict=True))


def raw(x: float, config: DqnConfig) -> float:
    return float(unrescale(torch.tensor(x))) if config.value_rescaling else x


def squashed(x: float, config: DqnConfig) -> float:
    return float(rescale(torch.tensor(x))) if config.value_rescaling else x


def atoms_of(config: DqnConfig) -> list[float]:
    assert config.v_min is not None and config.v_max is not None
    low, high = squashed(config.v_min, config), squashed(config.v_max, config)
    step = (high - low) / (config.num_atoms - 1)
    return [low + k * step for k in range(config.num_atoms)]


def best_after(
    i: int, online: QNetwork, target: QNetwork, batch: Transitions, config: DqnConfig
) -> int:
    chooser = (online if config.double else target).outputs(batch.next_obs)[i].detach()
    mask = batch.next_obs.get("action_mask")
    allowed = [a for a in range(ACTIONS) if mask is None or mask[i, a]] or list(range(ACTIONS))
    return max(allowed, key=lambda a: mean_return(chooser[a], config))


def literal_categorical(
    i: int, best: int, online: QNetwork, target: QNetwork, batch: Transitions, config: DqnConfig
) -> tuple[float, float]:
    """(cross-entropy, divergence) of transition i."""
    atoms, count = atoms_of(config), config.num_atoms
    after = target.outputs(batch.next_obs)[i, best].detach().softmax(-1)
    ours = online.outputs(batch.obs)[i, batch.actions["action"][i]].detach().softmax(-1)
    step = atoms[1] - atoms[0]
    goal = [0.0] * count
    for j, z in enumerate(atoms):
        moved = float(batch.returns[i]) + float(batch.discount[i]) * raw(z, config)
        clipped = min(max(squashed(moved, config), atoms[0]), atoms[-1])
        for k in range(count):
            goal[k] += max(0.0, 1 - abs(clipped - atoms[k]) / step) * float(after[j])
    crossed = -sum(m * math.log(float(p)) for m, p in zip(goal, ours, strict=True))
    return crossed, crossed + sum(m * math.log(m) for m in goal if m > 0)


def literal_quantiles(
    i: int, best: int, online: QNetwork, target: QNetwork, batch: Transitions, config: DqnConfig
) -> tuple[float, float]:
    """(sum over our quantiles of the mean over theirs, that divided by their number)."""
    after = target.outputs(batch.next_obs)[i, best].detach()
    ours = online.outputs(batch.obs)[i, batch.actions["action"][i]].detach()
    count, total = config.num_atoms, 0.0
    for k, j in itertools.product(range(count), range(count)):
        moved = float(batch.returns[i]) + float(batch.discount[i]) * raw(float(after[j]), config)
        u = squashed(moved, config) - float(ours[k])
        delta = config.huber_delta
        size = u * u / 2 if abs(u) <= delta else delta * (abs(u) - delta / 2)
        total += abs((2 * k + 1) / (2 * count) - (u < 0)) * size / delta / count
    return total, total / count


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head_size", [0, 5])
def test_dueling_is_of_every_atom(head: str, dueling: bool, head_size: int) -> None:
    """V + A - mean A, for each of the K numbers."""
    config = DqnConfig(**HEADS[head], dueling=dueling, head_size=head_size)
    model, obs = network(config, 3), {"obs": torch.randn(6, 3)}
    features = model.trunk.step(obs, torch.zeros(6, 0), torch.zeros(6, dtype=torch.bool))[0]
    numbers, count = model.heads(features), config.num_atoms
    outputs = model.outputs(obs)
    assert outputs.shape == (6, ACTIONS, count)
    for a, k in itertools.product(range(ACTIONS), range(count)):
        literal = numbers[:, a * count + k]
        if dueling:
            advantages = torch.stack([numbers[:, b * count + k] for b in range(ACTIONS)])
            literal = numbers[:, ACTIONS * count + k] + literal - advantages.mean(0)
        torch.testing.assert_close(outputs[:, a, k], literal)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rescaled", [False, True])
def test_means_and_deviations_are_literal(head: str, rescaled: bool) -> None:
    config = DqnConfig(**HEADS[head], value_rescaling=rescaled)
    support = value_distribution(config, rescaled)
    assert support is not None
    outputs = torch.randn(3, config.num_atoms)
    for i in range(3):
        wanted = squashed(mean_return(outputs[i], config), config)
        assert support.mean(outputs)[i].item() == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        if head == "quantile":
            points, shares = outputs[i].tolist(), [0.2] * 5
        else:
            points, shares = atoms_of(config), outputs[i].softmax(-1).tolist()
        mean = sum(p * x for p, x in zip(shares, points, strict=True))
        variance = sum(p * (x - mean) ** 2 for p, x in zip(shares, points, strict=True))
        assert support.std(outputs)[i].item() == pytest.approx(math.sqrt(variance), rel=1e-4)


def test_the_best_action_is_that_of_the_best_mean_return_though_values_are_squashed() -> None:
    """h is concave: a sure 40 has the larger mean of h, an even chance of 0 and 100 the larger
    return."""
    support = Quantiles(2, rescaled=True)
    outputs = rescale(torch.tensor([[40.0, 40.0], [0.0, 100.0]]))
    assert outputs.mean(-1).argmax() == 0
    assert support.mean(outputs).argmax() == 1
    torch.testing.assert_close(
        unrescale(support.mean(outputs)), torch.tensor([40.0, 50.0]), rtol=1e-3, atol=0
    )


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v_min": -1.0}, "--v-min -1.0: --value-distribution none has no atoms"),
        ({**HEADS["quantile"], "v_max": 1.0}, "--v-max 1.0: --value-distribution quantile"),
        ({**HEADS["c51"], "v_min": 3.0}, "--v-min 3: must be less than --v-max 3"),
        ({**HEADS["c51"], "num_atoms": 1}, "--num-atoms 1: must be at least 2"),
        ({**HEADS["c51"], "v_min": math.inf}, "--v-min inf: must"),
        ({"noisy_sigma": 0.0}, "--noisy-sigma 0.0: must be above 0"),
        (
            {**HEADS["c51"], "model": ModelConfig(core="gru")},
            "--value-distribution c51 --model.core gru: ",
        ),
    ],
)
def test_invalid_settings_of_value_distributions_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        apex_config(**change)


def test_the_atoms_of_images_are_the_papers_and_others_must_be_given() -> None:
    chosen = apex_config(value_distribution="c51", v_min=0.0)
    with pytest.raises(ConfigError, match=r"--v-max is missing.*give .* as --v-min and --v-max"):
        resolve_defaults(chosen, spec_of(chosen))
    images = dataclasses.replace(chosen, env="tests.support.envs:MixedActionEnv")
    fitted = resolve_defaults(images, spec_of(images))
    assert (fitted.v_min, fitted.v_max) == (0.0, 10.0)
    assert resolve_defaults(fitted, spec_of(images)) == fitted

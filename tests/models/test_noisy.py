"""Noisy nets: the paper's weights, the statistics of their noise, who draws it and who does not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.dqn.algorithm import DQN
from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.api import load_policy, train
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_heads import Noise, NoisyLinear, noisy_layers, set_noise
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.shared.newest import SharedWeights
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from sampleforge.topologies.replay.ladder import ladder_of
from tests.support.apex_graphs import apex_config
from tests.support.graphs import spec_of
from tests.support.pairings import plan_of
from tests.support.q_learning import DISCRETE, OBSERVATIONS, transitions, weights_of

MEAN_SQUARE = math.sqrt(2 / math.pi)
"""E f(x)^2 = E |x| of a standard normal x."""


def network(seed: int, head_size: int = 0) -> QNetwork:
    torch.manual_seed(seed)
    config = ModelConfig(encoder="mlp", hidden_sizes=(8,), normalise_observations=False)
    return QNetwork(
        config, OBSERVATIONS, DISCRETE, dueling=True, head_size=head_size, noisy_sigma=0.5
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * x.abs().sqrt()


@pytest.mark.parametrize("per_row", [False, True])
def test_a_noisy_layer_is_the_literal_one(per_row: bool) -> None:
    torch.manual_seed(0)
    layer, x = NoisyLinear(3, 2, sigma=0.5), torch.randn(5, 3)
    with torch.no_grad():
        layer.weight_sigma.uniform_(-1, 1)
        layer.bias_sigma.uniform_(-1, 1)
    layer.noise = Noise(generator(7), per_row)
    found = layer(x)
    found.square().sum().backward()
    drawn = generator(7)
    rows = (5,) if per_row else ()
    at_in = f(torch.randn((*rows, 3), generator=drawn)).expand(5, 3)
    at_out = f(torch.randn((*rows, 2), generator=drawn)).expand(5, 2)
    sigma = layer.weight_sigma.detach().clone().requires_grad_()
    outputs = []
    for b in range(5):
        weight = layer.weight.detach() + sigma * torch.outer(at_out[b], at_in[b])
        bias = layer.bias + layer.bias_sigma * at_out[b]
        outputs.append(weight @ x[b] + bias.detach())
    literal = torch.stack(outputs)
    torch.testing.assert_close(found, literal)
    literal.square().sum().backward()
    torch.testing.assert_close(layer.weight_sigma.grad, sigma.grad)


def test_a_noisy_layer_is_initialised_as_in_the_paper() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(64, 50, sigma=0.5)
    assert torch.equal(layer.weight_sigma, torch.full((50, 64), 0.5 / 8))
    assert torch.equal(layer.bias_sigma, torch.full((50,), 0.5 / 8))
    for mean in (layer.weight, layer.bias):
        assert mean.abs().max() <= 1 / 8
    assert layer.weight.std().item() == pytest.approx(2 / 8 / math.sqrt(12), rel=0.05)


def test_the_noise_has_the_expected_mean_and_variance() -> None:
    """Var y_j = E f^2 (E f^2 sum_i (sigma_ij x_i)^2 + sigma_b,j^2)."""
    torch.manual_seed(0)
    layer, x = NoisyLinear(4, 3, sigma=0.5), torch.randn(4)
    layer.noise = Noise(generator(1), per_row=True)
    with torch.no_grad():
        found = layer(x.expand(200_000, 4))
        layer.noise = None
        mean = layer(x)
        variance = MEAN_SQUARE * (
            MEAN_SQUARE * (layer.weight_sigma * x).square().sum(-1) + layer.bias_sigma.square()
        )
    torch.testing.assert_close(found.mean(0), mean, atol=0.01, rtol=0)
    torch.testing.assert_close(found.var(0), variance, atol=0, rtol=0.03)


def test_one_draw_is_for_a_whole_batch_or_for_a_row() -> None:
    model, x = network(1, head_size=6), {"obs": torch.ones(4, 3)}
    assert len(noisy_layers(model)) == 4, "hidden and last layers of value and advantages"
    means = model.q_values(x)
    set_noise(model, Noise(generator(2), per_row=False))
    first, second = model.q_values(x), model.q_values(x)
    assert torch.equal(first[0], first[3]) and not torch.equal(first, second)
    set_noise(model, Noise(generator(2), per_row=True))
    rows = model.q_values(x)
    assert len(torch.unique(rows, dim=0)) == 4
    set_noise(model, None)
    assert torch.equal(model.q_values(x), means)


def learner(noise_seed: int) -> DqnLearner:
    config = DqnConfig(
        noisy_nets=True,
        optimiser="adam",
        learning_rate=1e-2,
        optimiser_eps=1e-6,
        target_update_interval=3,
    )
    return DqnLearner(network(1), config, LearnerPlace(torch.device("cpu"), noise_seed=noise_seed))


def test_the_learner_draws_for_each_pass_and_from_its_seed() -> None:
    found, again, other = learner(3), learner(3), learner(4)
    for _ in range(3):
        one, two = (
            found.update(ReplaySample(transitions(), 0.4), 0.0),
            again.update(ReplaySample(transitions(), 0.4), 0.0),
        )
        assert one.metrics == two.metrics
        assert one.metrics["noise_to_weight"] > 0
    assert torch.equal(weights_of(found.model), weights_of(again.model))
    other.update(ReplaySample(transitions(), 0.4), 0.0)
    assert not torch.equal(weights_of(other.model), weights_of(found.model))
    obs = transitions().obs
    passes = [m.q_values(obs) for m in (found.model, found.model, found.target, found.target)]
    assert len(torch.unique(torch.stack(passes), dim=0)) == 4
    assert found.model.heads.weight_sigma.grad.abs().sum() > 0
    tensors, _ = found.state()
    fresh = {n for n in tensors if n.startswith("model/heads.")}
    assert fresh == {f"model/heads.{n}" for n in ("weight", "bias", "weight_sigma", "bias_sigma")}


def test_actors_explore_by_noise_alone_and_every_row_by_its_own() -> None:
    model = network(1)
    weights = SharedWeights(model.state_dict())
    weights.publish(model.state_dict(), 1)
    acted = []
    for seed in (0, 0, 1):
        place = ActingPlace(generator(seed), ladder=torch.zeros(400))
        policy = epsilon_greedy(network(2), weights, place, refresh_interval=0)
        policy.refresh()
        obs = {"obs": torch.full((400, 3), 0.3)}
        nothing = torch.zeros(400, 0), torch.zeros(400, dtype=torch.bool)
        acted.append(policy.act(obs, *nothing, torch.arange(400)))
    actions = [a.actions["action"] for a in acted]
    assert torch.equal(actions[0], actions[1]) and not torch.equal(actions[0], actions[2])
    assert len(torch.unique(actions[0])) > 1, "rows differ though no epsilon makes them"
    assert torch.equal(acted[0].extras["taken"], acted[0].extras["value"]), "each takes its best"
    assert len(torch.unique(acted[0].extras["value"])) == 400


def test_epsilons_are_zero_with_noisy_nets_unless_given() -> None:
    for given, noisy, first in [(None, False, 0.4), (None, True, 0.0), (0.3, True, 0.3)]:
        chosen = apex_config(epsilon_base=given, noisy_nets=noisy)
        chosen = resolve_defaults(chosen, spec_of(chosen))
        assert chosen.epsilon_base == first
        plan = plan_of(chosen, spec_of(chosen), "cpu")
        assert ladder_of(DQN, chosen, plan).max().item() == pytest.approx(first)


@pytest.mark.long
def test_noisy_runs_are_repeatable_resumed_and_evaluated_by_their_means(tmp_path: Path) -> None:
    def run(name: str, env_steps: int) -> Path:
        chosen = apex_config(
            noisy_nets=True,
            value_distribution="c51",
            v_min=0.0,
            v_max=50.0,
            num_atoms=11,
            env="CartPole-v1",
            serial=True,
            quiet=True,
            run_dir=str(tmp_path / name),
            model=ModelConfig(hidden_sizes=(16,), normalise_observations=False),
            train_for_env_steps=env_steps,
        )
        return train(chosen).run_dir

    one, two = (load_policy(run(name, 900)).model for name in "ab")
    assert all(torch.equal(x, two.state_dict()[n]) for n, x in one.state_dict().items())
    obs = {"obs": torch.full((1, 4), 0.01)}
    nothing = torch.zeros(1, 0), torch.ones(1, dtype=torch.bool)
    q = [one.step(obs, *nothing).parameters for _ in range(2)]
    assert torch.equal(*q), "evaluation has no noise"
    folder = run("a", 1500)
    later = load_policy(folder).model
    for name in ("heads.weight", "heads.weight_sigma"):
        assert not torch.equal(later.state_dict()[name], one.state_dict()[name])
    assert evaluate(folder, episodes=4)["return_mean"] > 0

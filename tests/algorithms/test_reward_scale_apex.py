"""Ape-X learns rewards of any size alike, from the first priorities to the weights."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.dqn.config import DqnConfig
from sampleforge.algorithms.dqn.learner import DqnLearner
from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.return_scale import REWARD_HORIZON, RewardScale
from sampleforge.config import ConfigError
from sampleforge.models.config import ModelConfig
from sampleforge.models.q_heads import Quantiles
from sampleforge.models.q_network import QNetwork
from sampleforge.replay.sample_batches import ReplaySample
from sampleforge.replay.samples import Transitions
from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.pairings.dqn_defaults import resolve_defaults
from tests.support.apex_graphs import apex_config, build_apex, learner_worker, serial_rounds
from tests.support.graphs import spec_of
from tests.support.q_learning import DISCRETE, OBSERVATIONS, network, transitions

CPU = torch.device("cpu")
QUANTILE: dict[str, Any] = {"value_distribution": "quantile", "num_atoms": 11}
GRU: dict[str, Any] = {
    "model": ModelConfig(hidden_sizes=(16,), core="gru", core_size=8, normalise_observations=False),
    "sequence_length": 8,
    "sequence_overlap": 4,
    "burn_in": 2,
    "replay_capacity": 20_000,
}


def cues(*, env_kwargs: dict[str, Any], **more: Any) -> ApexConfig:
    return apex_config(
        **{
            "env": "tests.support.reward_envs:CueEnv",
            "env_kwargs": env_kwargs,
            "num_workers": 1,
            "num_envs_per_worker": 8,
            "num_splits": 1,
            "rollout": 10,
            "model": ModelConfig(hidden_sizes=(32,), normalise_observations=False),
            "gamma": 0.9,
            "learning_rate": 3e-3,
            "batch_size": 64,
            "target_update_interval": 50,
            "learning_starts": 300,
            "replay_capacity": 20_000,
            "samples_per_insert": 8.0,
            "debug": False,
            **more,
        }
    )


@pytest.mark.long
@pytest.mark.parametrize("power", [-20, 20])
@pytest.mark.parametrize(
    "more",
    [{}, QUANTILE, {"noisy_nets": True, "head_size": 16}, GRU],
    ids=["values", "quantiles", "noisy", "gru"],
)
def test_the_unit_of_rewards_changes_no_bit_of_what_is_learned(
    more: dict[str, Any], power: int
) -> None:
    """Nor of the priorities, and so of what is drawn."""
    (one, priorities, said), (other, others, said_of_other) = (
        learned(cues(env_kwargs={"scale": scale, "silent": 60}, **more))
        for scale in (1.0, 2.0**power)
    )
    assert one["value_scale"] > 0
    for name, tensor in one.items():
        expected = tensor * 2.0**power if name == "value_scale" else tensor
        assert torch.equal(other[name], expected), name
    np.testing.assert_array_equal(priorities, others)
    assert said_of_other["loss"] == said["loss"]


def learned(chosen: ApexConfig) -> tuple[dict[str, torch.Tensor], np.ndarray, dict[str, float]]:
    """Weights, first priorities and metrics after 60 updates or more."""
    graph, _ = build_apex(chosen)
    for _ in serial_rounds(graph, 2000):
        worker = learner_worker(graph)
        if worker._learner.version >= 60:
            break
    else:
        raise AssertionError("nothing was learned")
    slots = graph.groups[0].exchange.slots
    first = slots.extras["td_error"] if chosen.sequences is None else slots.sequence_error
    return worker._learner.model.state_dict(), first, worker.handle("metrics", None)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rewards_of_any_size_are_learned_alike(scale: float) -> None:
    """Random: .25 of ``scale``; a mean of .85 is reached despite the rows that explore."""
    graph, _ = build_apex(cues(env_kwargs={"scale": scale}))
    runner, returns = SerialRunner(graph), deque([0.0], maxlen=100)
    runner.start()
    try:
        while np.mean(returns) <= 0.75 * scale and graph.progress.env_steps < 15_000:
            runner.poll(0)
            returns += [episode.ret for episode in graph.episodes.take()]
    finally:
        runner.close()
    assert np.mean(returns) > 0.75 * scale, np.mean(returns) / scale


def config(**kwargs: Any) -> DqnConfig:
    defaults: dict[str, Any] = {
        "learning_rate": 1e-2,
        "optimiser": "adam",
        "optimiser_eps": 1e-6,
        "target_update_interval": 3,
        "normalise_returns": True,
        "reward_clip": None,
    }
    return DqnConfig(**{**defaults, **kwargs})


def learner_of(chosen: DqnConfig, model: QNetwork | None = None) -> DqnLearner:
    model = network(1) if model is None else model
    if chosen.normalise_returns:
        model.value_scale.zero_()
    return DqnLearner(model, chosen, LearnerPlace(CPU))


def rewarded(size: float = 1.0, seed: int = 0) -> Transitions:
    """Transitions of windows of one step."""
    batch = transitions(32, seed=seed)
    returns = size * batch.returns.sign()
    return dataclasses.replace(batch, returns=returns, reward=returns)


def test_rewards_of_plus_and_minus_one_are_learned_as_they_are() -> None:
    """What was tuned on these, published settings among them, means the same."""
    normal, plain = learner_of(config()), learner_of(config(normalise_returns=False))
    for seed in range(40):
        batch = rewarded(seed=seed)
        ours, theirs = (
            normal.update(ReplaySample(batch, 0.4), 0.0),
            plain.update(ReplaySample(batch, 0.4), 0.0),
        )
        assert ours.metrics == theirs.metrics
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(normal.model.state_dict()[name], tensor), name


def test_the_scale_is_that_of_all_rewards_that_are_not_zero() -> None:
    rewards, seen = RewardScale(CPU), []
    generator = torch.Generator().manual_seed(0)
    for size in (1e-6, 3e-6, 1e-5):
        reward = size * torch.randn(64, generator=generator)
        reward[::2] = 0
        seen.append(reward[reward != 0].double())
        scale = rewards.update(reward)
        expected = torch.cat(seen).square().mean().sqrt()
        torch.testing.assert_close(scale, expected, rtol=1e-9, atol=0)
        assert rewards.update(torch.zeros(64)) == scale
        assert rewards.update(torch.full((64,), torch.inf)) == scale


def test_rewards_that_grow_are_followed() -> None:
    rewards = RewardScale(CPU)
    for _ in range(500):
        rewards.update(torch.ones(8))
    for _ in range(5 * REWARD_HORIZON):
        scale = rewards.update(1000 * torch.ones(8))
    assert float(scale) == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("distribution", [None, Quantiles(5, rescaled=False)])
@pytest.mark.parametrize("head_size", [0, 8])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_predictions_stay_when_the_scale_moves(
    sigma: float, head_size: int, distribution: Quantiles | None
) -> None:
    model = QNetwork(
        ModelConfig(encoder="mlp", hidden_sizes=(8,), normalise_observations=False),
        OBSERVATIONS,
        DISCRETE,
        dueling=True,
        head_size=head_size,
        noisy_sigma=sigma,
        value_distribution=distribution,
    )
    obs = transitions().obs
    before = model.q_values(obs) * model.value_scale
    model.rescale_values(torch.tensor(7.0))
    assert model.value_scale == 7
    torch.testing.assert_close(model.q_values(obs) * 7.0, before)
    model.rescale_values(torch.tensor(0.0))
    assert model.value_scale == 7, "0 is no scale"


def test_a_network_and_its_target_keep_their_predictions_while_learning() -> None:
    learner = learner_of(config(learning_rate=1e-12))
    learner.update(ReplaySample(rewarded(), 0.4), 0.0)
    obs = transitions().obs
    before = [n.q_values(obs) * n.value_scale for n in (learner.model, learner.target)]
    for _ in range(40):
        learner.update(ReplaySample(rewarded(size=50.0), 0.4), 0.0)
    assert learner.model.value_scale == learner.target.value_scale > 10
    for network_, kept in zip((learner.model, learner.target), before, strict=True):
        torch.testing.assert_close(network_.q_values(obs) * network_.value_scale, kept)


def test_a_learner_goes_on_exactly_where_its_state_was_taken() -> None:
    learner = learner_of(config())
    for seed in range(5):
        learner.update(ReplaySample(rewarded(3.0, seed), 0.4), 0.0)
    other = learner_of(config())
    other.load(*learner.state())
    for seed in range(5, 30):
        ours = learner.update(ReplaySample(rewarded(5.0, seed), 0.4), 0.0)
        theirs = other.update(ReplaySample(rewarded(5.0, seed), 0.4), 0.0)
        assert ours.metrics == theirs.metrics


def test_returns_that_are_no_longer_normalised_have_the_scale_one() -> None:
    learner = learner_of(config(learning_rate=1e-12))
    learner.update(ReplaySample(rewarded(50.0), 0.4), 0.0)
    other = learner_of(config(normalise_returns=False))
    other.load(*learner.state())
    assert other.model.value_scale == other.target.value_scale == 1
    obs = transitions().obs
    torch.testing.assert_close(other.model.q_values(obs), learner.model.q_values(obs) * 50.0)


def test_clipped_rewards_and_c51_keep_the_rewards_own_unit() -> None:
    plain = cues(env_kwargs={})
    spec = spec_of(plain)
    c51: dict[str, Any] = {"value_distribution": "c51", "v_min": 0.0, "v_max": 1.0}
    assert resolve_defaults(plain, spec).normalise_returns
    assert not resolve_defaults(dataclasses.replace(plain, reward_clip=1.0), spec).normalise_returns
    assert not resolve_defaults(dataclasses.replace(plain, **c51), spec).normalise_returns
    with pytest.raises(ConfigError, match="own unit"):
        dataclasses.replace(plain, **c51, normalise_returns=True)

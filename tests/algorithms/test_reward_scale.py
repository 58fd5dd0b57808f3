"""Rewards of any size are learned alike, and those that come late as well as those at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.return_scale import HORIZON, ReturnScale, common_error
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.api import Trainer
from sampleforge.models.config import ModelConfig
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from tests.support.graphs import resolved, spec_of, updates
from tests.support.learners import config as code_config
from tests.support.learners import learner_of, one_batch
from tests.support.learning import config as learning_config
from tests.support.learning import learn
from tests.support.variants import slow

SIZES = [1e-6, 1.0, 1e6]


def cues(**env_kwargs: Any) -> AppoConfig:
    return learning_config(
        "tests.support.reward_envs:CueEnv",
        {"hidden_sizes": (32,)},
        env_kwargs=env_kwargs,
        gamma=0.9,
        batch_size=512,
        minibatch_size=128,
        num_epochs=2,
        learner_threads=1,
    )


@pytest.mark.long
@pytest.mark.parametrize("power", [-20, 20])
@pytest.mark.parametrize(
    "more",
    [
        {"advantage": "vtrace"},
        {"advantage": "gae", "lr_schedule": "kl_adaptive", "num_epochs": 2, "minibatch_size": 128},
        {"advantage": "gae", "normalise_advantages": False},
        {"model": ModelConfig(hidden_sizes=(16,), core="gru", core_size=8)},
    ],
    ids=["vtrace", "gae", "advantages as they are", "gru"],
)
def test_the_unit_of_rewards_changes_no_bit_of_what_is_learned(
    more: dict[str, Any], power: int
) -> None:
    """Multiplying by a power of two is exact: whatever is not proportional to the rewards, a
    floor, an epsilon or a clip in their unit, would show."""
    found = []
    for scale in (1.0, 2.0**power):
        chosen = dataclasses.replace(cues(scale=scale, silent=64), **more)
        *_, (graph, metrics) = updates(chosen, 12)
        state = {n: torch.empty_like(t) for n, t in graph_state(chosen).items()}
        graph.groups[0].weights.read(state)
        found.append((state, metrics))
    (one, said), (other, said_of_other) = found
    assert one["value_scale"] > 0
    for name, tensor in one.items():
        expected = tensor * 2.0**power if name == "value_scale" else tensor
        assert torch.equal(other[name], expected), name
    for name in ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm"):
        assert said_of_other[name] == said[name], name


def graph_state(chosen: AppoConfig) -> dict[str, torch.Tensor]:
    return learner_of(resolved(chosen, spec_of(chosen))).model.state_dict()


@pytest.mark.parametrize("scale", SIZES)
def test_rewards_of_any_size_are_learned_alike(scale: float) -> None:
    """Random: .25 of ``scale``. As many steps for all of them."""
    assert learn(cues(scale=scale), 60_000, until=0.9 * scale) > 0.9 * scale


@pytest.mark.multiprocess(timeout=60)
@pytest.mark.parametrize("scale", [slow(1e-6), 1e6])
def test_ranks_learn_rewards_of_any_size(scale: float, tmp_path: Path) -> None:
    ranks = DdppoConfig(
        env="tests.support.reward_envs:CueEnv",
        env_kwargs={"scale": scale},
        model=ModelConfig(hidden_sizes=(32,)),
        run_dir=str(tmp_path / "run"),
        device="cpu",
        seed=1,
        num_ranks=2,
        num_envs_per_worker=16,
        rollout=16,
        minibatch_size=64,
        num_epochs=2,
        gamma=0.9,
        learning_rate=3e-3,
        train_for_env_steps=100_000,
        report_interval=0.5,
        quiet=True,
    )
    found = [0.0]
    with Trainer(ranks) as training:
        for report in training:
            found.append(report.get("return_mean", 0.0))
            if found[-1] > 0.9 * scale:
                break
    assert max(found) > 0.9 * scale, found


@pytest.mark.long
@pytest.mark.parametrize("batches", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("normalise", [True, False])
def test_rewards_that_come_after_many_batches_are_learned(normalise: bool, batches: int) -> None:
    """The first reward comes after ``batches``; from then on it takes no longer than usual."""
    silent = batches * 512 // 32
    chosen = dataclasses.replace(cues(silent=silent), normalise_returns=normalise)
    assert learn(chosen, silent * 32 + 60_000, until=0.9) > 0.9


def test_values_are_zero_and_the_policy_stays_until_the_first_reward() -> None:
    chosen = code_config(exploration_coeff=0.0)
    learner, batch = fresh(chosen), one_batch(chosen)
    before = {n: p.clone() for n, p in learner.model.named_parameters()}
    for _ in range(3):
        metrics = learner.update(without_rewards(batch), 0.0).metrics
    assert metrics["value_scale"] == 0 and metrics["value_mean"] == 0
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    assert learner.update(batch, 0.0).metrics["value_scale"] > 0


def test_a_rate_that_follows_the_kl_waits_for_the_first_reward() -> None:
    """Without anything to learn the KL is 0, and the rate would rise to its cap."""
    chosen = code_config(lr_schedule="kl_adaptive", exploration_coeff=0.0)
    learner, batch = fresh(chosen), one_batch(chosen)
    rates = [learner.update(without_rewards(batch), 0.0).metrics["learning_rate"] for _ in range(5)]
    assert rates == [chosen.learning_rate] * 5
    assert learner.update(batch, 0.0).metrics["learning_rate"] != chosen.learning_rate


def test_a_long_time_without_rewards_leaves_the_scale_as_it_was() -> None:
    chosen = code_config()
    learner, batch = fresh(chosen), one_batch(chosen)
    scale = learner.update(batch, 0.0).metrics["value_scale"]
    for _ in range(30):
        assert learner.update(without_rewards(batch), 0.0).metrics["value_scale"] == scale
    assert learner.update(batch, 0.0).metrics["value_scale"] == pytest.approx(scale, rel=0.5)


def test_the_scale_is_the_deviation_of_all_returns_merged_exactly() -> None:
    chosen = code_config()
    returns = ReturnScale(0.9, torch.device("cpu"))
    found: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(0)
    for size in (1.0, 3.0, 10.0):
        experience = one_step_episodes(size * torch.rand(8, 4, generator=generator))
        found.append(experience.reward.flatten().double())
        scale = returns.update(experience)
        expected = torch.cat(found).std(correction=0)
        torch.testing.assert_close(scale, expected, rtol=1e-6, atol=0)
    assert chosen.normalise_returns


def test_returns_that_grow_are_followed() -> None:
    returns = ReturnScale(0.9, torch.device("cpu"))
    noise = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(1000):
        returns.update(one_step_episodes(noise))
    for _ in range(3 * HORIZON):
        scale = returns.update(one_step_episodes(1000 * noise))
    assert float(scale) == pytest.approx(float(1000 * noise.std()), rel=0.2)


def test_returns_that_are_all_alike_have_a_scale() -> None:
    returns = ReturnScale(0.9, torch.device("cpu"))
    scale = returns.update(one_step_episodes(torch.full((8, 4), 1e-6)))
    assert float(scale) == pytest.approx(1e-7, rel=1e-5)


def test_returns_that_are_not_finite_do_not_count() -> None:
    returns = ReturnScale(0.9, torch.device("cpu"))
    rewards = torch.rand(8, 4)
    scale = float(returns.update(one_step_episodes(rewards)))
    rewards[3, 2] = float("inf")
    assert float(returns.update(one_step_episodes(rewards))) == scale


def test_returns_that_are_no_longer_normalised_have_the_scale_one() -> None:
    chosen = code_config()
    tensors, plain = fresh(chosen).state()
    learner = learner_of(dataclasses.replace(chosen, normalise_returns=False))
    learner.load(tensors, plain)
    assert learner.model.value_scale == 1


@pytest.mark.parametrize("same_step", [False, True])
def test_the_common_error_is_the_literal_one(same_step: bool) -> None:
    """A constant in place of all errors of the values, by as much as it is certain."""
    gamma, rows, scale = 0.9, 16, torch.tensor(2.0).double()
    experience, last_value = ended_in_places(rows, same_step)
    differences, weights = [], []
    for t, row in experience.mask.nonzero().tolist():
        following = last_value[row] if t == 7 else experience.value[t + 1, row]
        if experience.final_value is not None and experience.truncated[t, row]:
            following = experience.final_value[t, row]
        kept = 0.0 if experience.terminated[t, row] else gamma
        reached = experience.reward[t, row] + kept * following
        differences.append(float(reached - experience.value[t, row]))
        weights.append(1.0 - kept)
    literal = sum(differences) / sum(weights)
    left = [d - literal * w for d, w in zip(differences, weights, strict=True)]
    variance = sum(each**2 for each in left) / sum(weights) ** 2
    expected = literal * 4.0 / (4.0 + variance)
    assert 0.05 < variance / 4.0 < 0.5
    assert float(common_error(experience, last_value, gamma, scale)) == pytest.approx(expected)
    halves, sums = torch.arange(rows).chunk(2), list[torch.Tensor]()
    for half in halves:
        part = experience.rows(half), last_value[half], gamma, scale
        common_error(*part, lambda own: sums.append(own) or own.unsqueeze(0))  # type: ignore[func-returns-value]
    for half in halves:
        part = experience.rows(half), last_value[half], gamma, scale
        found = common_error(*part, lambda _: torch.stack(sums))
        assert float(found) == pytest.approx(expected), "of all learners' parts"
    raised = experience.with_values_raised(torch.tensor(literal)), last_value + literal
    assert abs(float(common_error(*raised, gamma, scale))) < 1e-6 < abs(expected)
    wrong = experience.reward.clone()
    wrong[tuple(experience.mask.nonzero()[0])] = torch.inf
    broken = dataclasses.replace(experience, reward=wrong)
    assert float(common_error(broken, last_value, gamma, scale)) == 0


def test_values_that_are_all_too_low_are_raised_at_once() -> None:
    """Rewards of 1000 and a bit, in episodes that are cut: values near 1000 / (1 - gamma)."""
    learner, batch = fresh(code_config(gamma=0.99)), one_batch(code_config())
    no = torch.zeros_like(batch.terminated)
    reward = 1000 + torch.rand(batch.reward.shape)
    batch = dataclasses.replace(batch, reward=reward, terminated=no)
    assert learner.update(batch, 0.0).metrics["value_mean"] == pytest.approx(1e5, rel=0.02)


def test_values_that_are_all_too_high_stay_where_they_are() -> None:
    """What has not been reached yet promises more than what costs 1 a step."""
    learner, batch = fresh(code_config(gamma=0.99)), one_batch(code_config())
    no = torch.zeros_like(batch.terminated)
    batch = dataclasses.replace(batch, reward=-torch.ones_like(batch.reward), terminated=no)
    metrics = learner.update(batch, 0.0).metrics
    assert metrics["value_scale"] > 0
    assert abs(metrics["value_mean"]) < metrics["value_scale"], "near 0, and not -100"


def ended_in_places(rows: int, same_step: bool) -> tuple[Any, torch.Tensor]:
    """Experience [8, rows] with values that are too low, and the last values [rows]."""
    generator = torch.Generator().manual_seed(3)

    def draw() -> torch.Tensor:
        return torch.rand(8, rows, generator=generator)

    terminated, truncated = draw() < 0.1, draw() < 0.1
    experience = dataclasses.replace(
        one_step_episodes(0.5 + draw()),
        acted={"log_prob": draw(), "value": draw() - 1.0},
        terminated=terminated & ~truncated,
        truncated=truncated,
        mask=draw() < 0.9,
        final_value=draw() - 1.0 if same_step else None,
    )
    return experience, draw()[0] - 1.0


def fresh(chosen: AppoConfig) -> RolloutLearner:
    """A learner as a run begins with."""
    learner = learner_of(chosen)
    learner.model.value_scale.zero_()
    return learner


def without_rewards(batch: Batch) -> Batch:
    """With the values that would have been predicted."""
    return dataclasses.replace(
        batch,
        reward=torch.zeros_like(batch.reward),
        acted={**batch.acted, "value": torch.zeros_like(batch.value)},
    )


def one_step_episodes(rewards: torch.Tensor) -> Any:
    """Experience whose returns are its rewards."""
    yes, no = torch.ones_like(rewards).bool(), torch.zeros_like(rewards).bool()
    return Experience(
        obs={},
        is_first=yes,
        state=torch.zeros(rewards.shape[1], 0),
        actions={},
        acted={name: torch.zeros_like(rewards) for name in ("log_prob", "value")},
        reward=rewards,
        terminated=yes,
        truncated=no,
        trace_cut=yes,
        step_mask=yes,
        mask=yes,
    )

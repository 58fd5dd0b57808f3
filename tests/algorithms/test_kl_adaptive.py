"""The KL-adaptive learning rate follows what updates do to the policy, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

from sampleforge.algorithms import rollout_learner
from sampleforge.algorithms.experience import experience_of
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.algorithms.update_kl import KL_STEPS, kl_of_update
from sampleforge.models.config import ModelConfig
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.ops.schedules import MAX_LEARNING_RATE, MIN_LEARNING_RATE
from sampleforge.rollouts.batch import Batch
from sampleforge.topologies.config import AppoConfig
from tests.support.action_spaces import MIXED, SPACES, parameters
from tests.support.graphs import updates
from tests.support.learners import config, learner_of, one_batch

TARGET = 0.01


def adaptive(**kwargs: Any) -> AppoConfig:
    """One gradient step per batch."""
    steps = {"num_epochs": 1, "minibatch_size": kwargs.get("batch_size", 64)}
    given = {"async_rl": False, "advantage": "vtrace", **steps, **kwargs}
    return config(lr_schedule="kl_adaptive", lr_target_kl=TARGET, **given)


def rates_of(chosen: AppoConfig, count: int) -> list[float]:
    return [metrics["learning_rate"] for _, metrics in updates(chosen, count)]


@pytest.mark.long
@pytest.mark.parametrize("start", [3e-6, 1e-4, 8e-3])
def test_with_one_step_per_batch_the_rate_settles(start: float) -> None:
    """Measured before the step, the KL is always 0, and the rate goes to its cap and stays there.
    The target is what this small network reaches far from both bounds."""
    target = 1e-5
    chosen = adaptive(learning_rate=start, num_envs_per_worker=16, batch_size=128)
    chosen = dataclasses.replace(chosen, lr_target_kl=target)
    last = [metrics for _, metrics in updates(chosen, 80)][-30:]
    rates = [metrics["learning_rate"] for metrics in last]
    assert min(rates) > 100 * MIN_LEARNING_RATE and max(rates) < MAX_LEARNING_RATE
    kl = sum(metrics["update_kl"] for metrics in last) / len(last)
    assert target / 4 < kl < 6 * target


def test_with_many_steps_per_batch_the_rate_falls_and_rises_as_before() -> None:
    many = {"num_epochs": 4, "minibatch_size": 16, "batch_size": 32}
    high = rates_of(adaptive(learning_rate=5e-2, **many), 4)
    assert high == sorted(high, reverse=True) and high[-1] < 5e-2
    low = rates_of(adaptive(learning_rate=1e-6, **many), 4)
    assert low == pytest.approx([1.5e-6, 2.25e-6, 3.375e-6, 5.0625e-6])


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_kl_is_that_of_the_update_whatever_the_behaviour_was(core: Any) -> None:
    """Experience of another policy, as asynchronous runs have it, is no large step."""
    small = ModelConfig(hidden_sizes=(16,), core_size=8, core=core, normalise_observations=False)
    chosen = adaptive(learning_rate=1e-6, model=small)
    learner, batch = learner_of(chosen), one_batch(chosen)
    other = dataclasses.replace(batch, acted={**batch.acted, "log_prob": batch.log_prob - 1.0})
    metrics = learner.update(other, 0.0).metrics
    assert metrics["approx_kl"] > 0.3, "the policy is far from the behaviour"
    assert 0 <= metrics["update_kl"] < 1e-5
    assert metrics["learning_rate"] == pytest.approx(1.5e-6)


def test_a_rate_does_not_rise_on_updates_that_took_no_step() -> None:
    chosen = adaptive()
    learner, batch = learner_of(chosen), one_batch(chosen)
    broken = dataclasses.replace(batch, reward=torch.full_like(batch.reward, torch.nan))
    metrics = learner.update(broken, 0.0).metrics
    assert metrics["skipped_steps"] == 1
    assert metrics["learning_rate"] == chosen.learning_rate


def test_other_schedules_take_no_additional_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_learner, "passes_of", lambda model: None)  # all are the model's
    for schedule, passes in (("constant", 1), ("kl_adaptive", 3)):
        chosen = config(lr_schedule=schedule)
        learner, batch = learner_of(chosen), one_batch(chosen)
        count: list[int] = []
        learner.model.register_forward_hook(lambda *_, count=count: count.append(1))
        metrics = learner.update(batch, 0.0).metrics
        assert len(count) == passes
        assert ("update_kl" in metrics) == (schedule == "kl_adaptive")


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_kl_of_a_sample_of_a_large_batch_is_accurate(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_learner, "passes_of", lambda model: None)  # all are the model's
    chosen = adaptive(num_envs_per_worker=256, batch_size=2048, model=ModelConfig(core=core))
    learner, batch = learner_of(chosen), one_batch(chosen)
    assert batch.valid.numel() > 1.5 * KL_STEPS
    sizes: list[int] = []
    learner.model.register_forward_hook(
        lambda _, args, output: sizes.append(output.parameters[..., 0].numel())
    )
    metrics = learner.update(batch, 0.0).metrics
    assert sizes[0] == sizes[-1] < 1.2 * KL_STEPS < sizes[1]
    sampled = metrics["update_kl"]
    assert sampled == pytest.approx(whole_kl(chosen, batch), rel=0.3)


def whole_kl(chosen: AppoConfig, batch: Batch) -> float:
    """KL of the same update over the whole batch."""
    learner: RolloutLearner = learner_of(chosen)

    def distribution() -> ActionDistribution:
        with torch.no_grad():
            output = learner.model(batch.obs, batch.state, batch.is_first)
        return learner.model.distribution(output.parameters, batch.obs)

    before = distribution()
    statistics = learner._update_statistics
    found: list[float] = []

    def measured(*args: Any) -> None:
        kl = before.kl(distribution())[:-1]
        found.append(float(kl[batch.valid].mean()))
        statistics(*args)

    learner._update_statistics = measured  # type: ignore[method-assign,assignment]
    learner.update(batch, 0.0)
    return found[0]


def test_the_kl_over_ranks_is_the_mean_over_their_rows() -> None:
    """A rank with four times as many rows counts four times, though the samples are of one size."""
    chosen = adaptive(num_envs_per_worker=256, batch_size=2048)
    learner, batch = learner_of(chosen), one_batch(chosen)
    few = {name: leaf[:, :64] for name, leaf in batch.obs.items()}
    acted = {name: leaf[:, :64] for name, leaf in batch.acted.items()}
    columns = ("is_first", "version", "reward", "terminated", "truncated")
    of_64 = {name: getattr(batch, name)[:, :64] for name in (*columns, "valid")}
    actions = {name: leaf[:, :64] for name, leaf in batch.actions.items()}
    state = batch.state[:64]
    small = dataclasses.replace(batch, obs=few, actions=actions, acted=acted, state=state, **of_64)
    weights: list[float] = []

    def gather(own: torch.Tensor) -> torch.Tensor:
        weights.append(float(own[1]))
        return own.unsqueeze(0)

    for each in (batch, small):
        experience = experience_of(each, chosen, 0)
        kl_of_update(learner.model, experience, torch.Generator())(gather)
    assert weights[0] == pytest.approx(int(batch.valid.sum()), rel=0.1)
    assert weights[1] == pytest.approx(int(small.valid.sum()), rel=0.1)


def test_the_kl_is_nan_without_a_valid_step() -> None:
    chosen = adaptive()
    learner, batch = learner_of(chosen), one_batch(chosen)
    nothing = dataclasses.replace(batch, valid=torch.zeros_like(batch.valid))
    experience = experience_of(nothing, chosen, 0)
    measure = kl_of_update(learner.model, experience, torch.Generator())
    assert measure(lambda x: x.unsqueeze(0)).isnan()


# ---- KL of distributions ----


def test_kl_equals_torchs() -> None:
    logits = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    p, q = (ActionDistribution(SPACES["discrete"], x) for x in logits)
    expected = kl_divergence(Categorical(logits=logits[0]), Categorical(logits=logits[1]))
    torch.testing.assert_close(p.kl(q), expected)
    boxes = 0.3 * torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))
    means, log_stds = boxes.chunk(2, -1)
    normals = [Normal(m, s.exp()) for m, s in zip(means, log_stds, strict=True)]
    for squash in (False, True):  # a KL does not depend on a map of both
        p, q = (ActionDistribution(SPACES["box"], x, squash=squash) for x in boxes)
        torch.testing.assert_close(p.kl(q), kl_divergence(*normals).sum(-1))


def test_kl_of_mixed_actions_is_the_mean_log_ratio() -> None:
    p = ActionDistribution(MIXED, parameters(MIXED, 1, scale=0.3).expand(200_000, -1))
    q = ActionDistribution(MIXED, parameters(MIXED, 1, scale=0.2).expand(200_000, -1))
    drawn = p.sample(torch.Generator().manual_seed(0))
    expected = (p.log_prob(drawn) - q.log_prob(drawn)).mean()
    assert float(p.kl(q)[0]) == pytest.approx(float(expected), rel=0.05)


def test_masked_categories_add_nothing_to_a_kl() -> None:
    allowed = torch.tensor([[True, True, False, False]])
    p = ActionDistribution(SPACES["discrete"], torch.tensor([[0.0, 1.0, 5.0, 2.0]]), allowed)
    q = ActionDistribution(SPACES["discrete"], torch.tensor([[1.0, 0.0, -9.0, 7.0]]), allowed)
    two = kl_divergence(
        Categorical(logits=torch.tensor([0.0, 1.0])), Categorical(logits=torch.tensor([1.0, 0.0]))
    )
    torch.testing.assert_close(p.kl(q)[0], two)


@pytest.mark.parametrize("before", ["linear", "kl_adaptive"])
def test_a_constant_rate_after_a_schedule_is_the_one_that_was_given(before: str) -> None:
    """On a resume: the schedule has left another one behind."""
    steps = {"num_epochs": 1, "minibatch_size": 64, "learning_rate": 1e-3}
    names = (before, "constant")
    given = {n: config(lr_schedule=n, train_for_env_steps=10**6, **steps) for n in names}
    first = learner_of(given[before])
    last = first.update(one_batch(given[before]), 0.75).metrics["learning_rate"]
    assert last != 1e-3
    for name, expected in ((before, last), ("constant", 1e-3)):
        then = learner_of(given[name])
        then.load(*first.state())
        found = then._learning_rate
        if name != "kl_adaptive":  # which an update moves
            found = then.update(one_batch(given[name]), 0.75).metrics["learning_rate"]
        assert found == expected

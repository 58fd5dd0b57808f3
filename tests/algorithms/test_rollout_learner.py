"""The learner on experience that the sampler made: ratios, masks, bootstraps, statistics."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sampleforge.algorithms.config import LearnerConfig
from sampleforge.algorithms.experience import experience_of, minibatch_positions
from sampleforge.algorithms.ppo.config import PpoLossConfig
from sampleforge.algorithms.ppo.loss import PpoLoss
from tests.support.envs import episode_length
from tests.support.graphs import rollouts, updates
from tests.support.learners import SMALL, config, learner_of, model_of, one_batch
from tests.support.literal_ppo import gradients_of, parts_of
from tests.support.variants import slow


@pytest.mark.long
@pytest.mark.parametrize(
    ("core", "advantage"),
    [
        ("none", "vtrace"),
        ("gru", "gae"),
        ("lstm", "vtrace"),
        slow("none", "gae"),
        slow("gru", "vtrace"),
        slow("lstm", "gae"),
    ],
)
@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CodeEnv", {}),
        ("MaskedEnv", {"where": "info"}),
        ("MaskedEnv", {"where": "obs"}),
        ("MixedActionEnv", {}),
    ],
)
def test_the_first_ratio_on_fresh_experience_is_one(
    env: str, kwargs: dict[str, str], core: Any, advantage: str
) -> None:
    """Acting and learning see the same distribution, update after update, with masks, cores, mixed
    actions, and with running observation statistics that move in between."""
    chosen = config(
        env=f"tests.support.envs:{env}",
        env_kwargs=kwargs,
        advantage=advantage,
        async_rl=False,
        num_epochs=2,
        minibatch_size=16,
        model=dataclasses.replace(SMALL, core=core),
    )
    for _, metrics in updates(chosen, 5):
        assert metrics["ratio_deviation_first"] < 1e-5
        assert metrics["policy_lag_max"] == 0
        assert metrics["approx_kl"] > 0, "later minibatches must have moved away"


@pytest.mark.parametrize("noise_correlation", [0.0, 0.8])
def test_squashed_and_state_dependent_box_actions_have_ratio_one(noise_correlation: float) -> None:
    chosen = config(
        env="Pendulum-v1",
        noise_correlation=noise_correlation,
        async_rl=False,
        minibatch_size=16,
        advantage="gae",
        model=dataclasses.replace(SMALL, squash_actions=True, action_std="state"),
    )
    for _, metrics in updates(chosen, 5):
        assert metrics["ratio_deviation_first"] < 1e-5


def test_asynchronous_experience_is_stale_and_shows_it() -> None:
    """The counterpart: behind the newest weights the first ratio is not 1."""
    chosen = config(num_epochs=2, num_workers=2, learning_rate=1e-2)
    assert max(m["ratio_deviation_first"] for _, m in updates(chosen, 5)) > 1e-4


def test_truncation_bootstraps_from_the_final_observation() -> None:
    chosen = config(env_kwargs={"ending": "truncate"}, decorrelate=False, normalise_returns=False)
    model, found = model_of(chosen), 0
    loss = PpoLoss(PpoLossConfig(advantage="gae"), gamma=0.9)
    for batch in rollouts(chosen, 8):
        experience = loss.prepare(model, experience_of(batch, chosen, 0))
        assert experience.targets is not None
        for t, row in batch.truncated.nonzero().tolist():
            env, episode, step, _ = batch.obs["obs"][t + 1, row].tolist()
            assert step == episode_length(int(env), int(episode), 9), "the final obs, not the reset"
            final = {"obs": batch.obs["obs"][t + 1, row : row + 1]}
            with torch.no_grad():
                value = model.step(
                    final, torch.zeros(1, 0), torch.zeros(1, dtype=torch.bool)
                ).values
            target = batch.reward[t, row] + 0.9 * value[0]
            torch.testing.assert_close(experience.targets[t, row], target, atol=1e-4, rtol=1e-5)
            found += 1
    assert found > 10


def test_termination_does_not_bootstrap() -> None:
    chosen = config(env_kwargs={"ending": "terminate"}, decorrelate=False)
    loss, found = PpoLoss(PpoLossConfig(advantage="gae"), gamma=0.9), 0
    for batch in rollouts(chosen, 8):
        experience = loss.prepare(model_of(chosen), experience_of(batch, chosen, 0))
        assert experience.targets is not None
        for t, row in batch.terminated.nonzero().tolist():
            torch.testing.assert_close(experience.targets[t, row], batch.reward[t, row])
            found += 1
    assert found > 10


@pytest.mark.parametrize("inference", ["inline", "worker"])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_same_step_environments_have_their_final_observations_valued(
    inference: str, core: Any
) -> None:
    """The value is of the final observation, which only the side storage holds, and with the
    recurrent state of its episode."""
    chosen = config(
        env="tests.support.envs:CountingVectorEnv",
        env_kwargs={"mode": "same_step", "ending": "truncate"},
        inference=inference,
        model=dataclasses.replace(SMALL, core=core, normalise_observations=False),
        normalise_returns=False,  # else all values are 0 until the first batch is learned from
    )
    model, found = model_of(chosen), 0
    for batch in rollouts(chosen, 10):
        rollout, rows = batch.steps
        assert batch.valid.all() and batch.final_value is not None
        for row in range(rows):
            state = batch.state[row : row + 1]
            for t in range(rollout):
                obs = {"obs": batch.obs["obs"][t, row : row + 1]}
                with torch.no_grad():
                    state = model.step(obs, state, batch.is_first[t, row : row + 1]).state
                if not batch.truncated[t, row]:
                    continue
                env, episode, step, _ = obs["obs"][0].tolist()
                final = torch.tensor([[env, episode, step + 1, batch.actions["action"][t, row]]])
                with torch.no_grad():
                    value = model.step({"obs": final}, state, torch.tensor([False])).values[0]
                torch.testing.assert_close(batch.final_value[t, row], value, atol=1e-4, rtol=1e-4)
                assert batch.is_first[t + 1, row]
                found += 1
    assert found > 10


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_rows_that_do_not_count_change_nothing(advantage: str) -> None:
    """Neither the loss nor its gradient depends on what lies in rows that are not valid."""
    chosen = config(advantage=advantage)
    batch = one_batch(chosen)
    assert not batch.valid.all()
    gradients = []
    for noise in (0.0, 5.0):
        model, loss = model_of(chosen), PpoLoss(chosen, chosen.gamma)
        spoiled = dataclasses.replace(
            batch,
            acted={
                **batch.acted,
                "log_prob": torch.where(batch.valid, batch.log_prob, batch.log_prob - noise),
            },
            reward=torch.where(batch.valid, batch.reward, batch.reward + noise),
        )
        experience = loss.prepare(model, experience_of(spoiled, chosen, 0))
        gradients.append(gradients_of(loss, model, experience)[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-5)


def test_stale_rows_are_masked_and_counted() -> None:
    chosen = config(max_policy_lag=10)
    learner, batch = learner_of(chosen), one_batch(chosen)
    learner.version = 30
    half = dataclasses.replace(batch, version=batch.version + 25)
    half.version[:4] = 5
    metrics = learner.update(half, 0.0).metrics
    assert metrics["policy_lag_max"] == 25 and metrics["policy_lag_min"] == 5
    assert metrics["stale_steps"] == batch.valid[:4].sum()
    assert metrics["valid_steps"] == batch.valid.sum()


def test_a_batch_of_stale_rows_only_leaves_the_weights_alone() -> None:
    chosen = config(max_policy_lag=10, exploration_coeff=0.0)
    learner, batch = learner_of(chosen), one_batch(chosen)
    learner.version = 1000
    before = [p.clone() for p in learner.model.parameters()]
    metrics = learner.update(batch, 0.0).metrics
    assert metrics["stale_steps"] == metrics["valid_steps"] > 0
    for old, new in zip(before, learner.model.parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    chosen = config()
    learner, batch = learner_of(chosen), one_batch(chosen)
    learner.update(batch, 0.0)
    before = [p.clone() for p in learner.model.parameters()]
    broken = dataclasses.replace(batch, reward=batch.reward.clone())
    broken.reward[2, batch.valid[2].nonzero()[0]] = float("nan")
    assert learner.update(broken, 0.0).metrics["skipped_steps"] == 1
    for old, new in zip(before, learner.model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert learner.update(batch, 0.0).metrics["skipped_steps"] == 0
    assert not torch.equal(before[0], next(iter(learner.model.parameters())))


def test_the_normaliser_has_counted_every_observation_once() -> None:
    seen = 0.0
    for graph, metrics in updates(config(), 6):
        model = model_of(config())
        graph.groups[0].weights.read(model.state_dict())
        seen += metrics["valid_steps"]  # not final observations: no step begins with them
        assert model.normaliser is not None
        assert model.normaliser.state_dict()[
            next(n for n in model.normaliser.state_dict() if "count" in n)
        ] == pytest.approx(seen, abs=1e-3)


def test_minibatches_of_single_steps_cover_every_step_once() -> None:
    chosen = config(advantage="gae")
    batch = one_batch(chosen)
    batch.value.copy_(torch.arange(batch.value.numel()).view_as(batch.value))
    experience = PpoLoss(chosen, 0.9).prepare(model_of(chosen), experience_of(batch, chosen, 0))
    generator = torch.Generator().manual_seed(0)
    drawn = minibatch_positions(experience, 8, whole_rows=False, generator=generator)
    parts = parts_of(experience, drawn, whole_rows=False)
    assert len(parts) == 2
    assert torch.cat([p.value.flatten() for p in parts]).sort().values.tolist() == list(range(16))
    for part in parts:
        t, row = part.value[0].long() // 2, part.value[0].long() % 2
        assert torch.equal(part.obs["obs"][0], batch.obs["obs"][t, row])
        assert torch.equal(part.reward[0], batch.reward[t, row])


def test_minibatches_of_rows_cover_every_row_once() -> None:
    chosen = config(num_envs_per_worker=8)
    experience = experience_of(one_batch(chosen), chosen, 0)
    generator = torch.Generator().manual_seed(0)
    drawn = minibatch_positions(experience, 16, whole_rows=True, generator=generator)
    parts = parts_of(experience, drawn, whole_rows=True)
    assert [tuple(p.reward.shape) for p in parts] == [(8, 2), (8, 2)]
    ids = torch.cat([p.obs["obs"][0, :, 0] for p in parts])
    assert sorted(ids.tolist()) == sorted(experience.obs["obs"][0, :, 0].tolist())


def test_rewards_are_scaled_then_clipped_for_learning() -> None:
    chosen = config()
    batch = one_batch(chosen)
    learning = LearnerConfig(reward_scale=0.5, reward_clip=1.0)
    expected = (batch.reward * 0.5).clamp(-1, 1)
    assert torch.equal(experience_of(batch, learning, 0).reward, expected)


def test_a_learner_goes_on_exactly_where_its_state_was_taken() -> None:
    chosen = config(advantage="gae", minibatch_size=8, num_epochs=2, normalise_returns=True)
    batch = one_batch(chosen)
    learner = learner_of(chosen)
    for _ in range(3):
        learner.update(batch, 0.0)
    tensors, plain = learner.state()
    other = learner_of(chosen)
    other.load(tensors, plain)
    for _ in range(3):
        assert learner.update(batch, 0.0) == other.update(batch, 0.0)
    for mine, theirs in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_all_predictions_move_by_the_common_error_alone_when_the_scale_moves() -> None:
    chosen = config(normalise_returns=True, learning_rate=1e-12)
    learner, batch = learner_of(chosen), one_batch(chosen)
    with torch.no_grad():
        before = learner.model(batch.obs, batch.state, batch.is_first).values
    learner.update(batch, 0.0)
    model = learner.model
    assert model.value_scale != 1
    assert model.normaliser is not None
    model.normaliser.load_state_dict(model_of(chosen).normaliser.state_dict())  # type: ignore[union-attr]
    with torch.no_grad():
        after = model(batch.obs, batch.state, batch.is_first).values
    moved = after - before
    assert abs(float(moved.mean())) > 0.01
    torch.testing.assert_close(moved, moved.mean().expand_as(moved), atol=1e-4, rtol=1e-4)


def test_values_begin_once_also_in_a_run_that_was_resumed() -> None:
    chosen = config(normalise_returns=True, learning_rate=1e-12)
    first, batch = learner_of(chosen), one_batch(chosen)
    first.update(batch, 0.0)
    second = learner_of(chosen)
    second.load(*first.state())
    later = dataclasses.replace(batch, reward=batch.reward + 1000.0)
    for learner in (first, second):
        with torch.no_grad():
            before = learner.model(batch.obs, batch.state, batch.is_first).values
        statistics = {n: t.clone() for n, t in learner.model.normaliser.state_dict().items()}
        learner.update(later, 0.0)
        learner.model.normaliser.load_state_dict(statistics)
        with torch.no_grad():
            after = learner.model(batch.obs, batch.state, batch.is_first).values
        torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_the_linear_schedule_follows_the_progress() -> None:
    chosen = config(lr_schedule="linear", learning_rate=0.1, train_for_env_steps=1000)
    learner, batch = learner_of(chosen), one_batch(chosen)
    rates = [
        learner.update(batch, progress).metrics["learning_rate"] for progress in (0.0, 0.25, 1.0)
    ]
    assert rates == pytest.approx([0.1, 0.075, 0.0])


@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_the_scheduled_bonus_is_that_of_the_progress(advantage: Any) -> None:
    found = []
    for schedule, coefficient in (({"exploration_coeff": "linear"}, 0.4), ({}, 0.1)):
        chosen = config(
            advantage=advantage,
            anneal=schedule,
            exploration_coeff=coefficient,
            train_for_env_steps=1000,
        )
        learner, batch = learner_of(chosen), one_batch(chosen)
        metrics = [learner.update(batch, 0.75) for _ in range(2)]
        assert learner.hyperparameters()["exploration_coeff"] == coefficient
        assert all(each.metrics.pop("exploration_coeff", 0.1) == 0.1 for each in metrics)
        found.append((metrics, learner.model.policy_weight))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_checkpoint_of_another_model_is_refused() -> None:
    tensors, plain = learner_of(config()).state()
    other = learner_of(config(model=dataclasses.replace(SMALL, hidden_sizes=(8,))))
    with pytest.raises(ValueError, match="another model"):
        other.load(tensors, plain)

"""Imitation of recorded actions: cloning, advantage weights, truncated episodes, the learner."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from sampleforge.algorithms.learning import LearnerPlace
from sampleforge.algorithms.marwil.config import ImitationConfig
from sampleforge.algorithms.marwil.learner import MarwilLearner, imitation_loss, value_targets
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.spec import ActionSpec
from tests.support.recorded import BOX, DISCRETE, GAMMA, MULTI, actor_critic, mixture, recorded

NO_NORM = torch.zeros((), dtype=torch.float64)


def config(**kwargs: Any) -> ImitationConfig:
    return ImitationConfig(**{"learning_rate": 1e-2, "gamma": GAMMA, **kwargs})


def gradients(model: ActorCritic, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("actions", [DISCRETE, MULTI, BOX], ids=["discrete", "multi", "box"])
def test_with_exponent_zero_gradients_are_those_of_behaviour_cloning(
    actions: dict[str, ActionSpec], core: str
) -> None:
    """The mean negative log-likelihood alone, bit by bit, although the critic shares the encoder
    and would have a loss."""
    length = 1 if core == "none" else 3
    batch = mixture(recorded([5, 7], actions, truncated=(1,)), rows=4, length=length).batch(0)
    model = actor_critic(actions, core=core)
    loss, metrics, norm = imitation_loss(model, batch, config(advantage_exponent=0.0), NO_NORM)
    found = gradients(model, loss)
    state = torch.zeros(4, model.state_size)
    parameters = model(batch.obs, state, batch.is_first).parameters
    log_prob = model.distribution(parameters, batch.obs).log_prob(batch.actions)
    cloning = -torch.where(batch.mask, log_prob, 0.0).sum() / batch.mask.sum()
    expected = gradients(model, cloning)
    assert any(bool(g.any()) for g in expected.values())
    for name, gradient in expected.items():
        assert found[name].equal(gradient), name
    assert norm is NO_NORM and "value_loss" not in metrics


def test_the_weighted_loss_is_that_of_the_paper() -> None:
    batch = mixture(recorded([5, 7], truncated=(1,)), rows=6).batch(0)
    model = actor_critic()
    model.rescale_values(4.0)
    model.value_bias.data += 1.0  # so that some advantages are negative
    settings = config(advantage_exponent=0.7, value_coeff=0.3, max_advantage_weight=1.5)
    loss, _, square = imitation_loss(model, batch, settings, NO_NORM)
    made = model(batch.obs, torch.zeros(6, 0), batch.is_first)
    log_prob = model.distribution(made.parameters, batch.obs).log_prob(batch.actions)
    advantages = (value_targets(model, batch) - made.values).detach()
    assert float(square) == pytest.approx(float(advantages.square().mean()))
    weights = (0.7 * advantages / square.sqrt()).exp().clamp(max=1.5)
    assert (weights == 1.5).any() and (weights < 1).any()
    value_loss = ((made.values - value_targets(model, batch)) / 4.0).square().mean()
    expected = -(weights * log_prob).mean() + 0.3 * value_loss
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    found = gradients(model, loss)
    for name, gradient in gradients(model, expected).items():
        assert found[name].allclose(gradient, atol=1e-6), name


def test_returns_bootstrap_where_an_episode_was_truncated() -> None:
    episodes = recorded([4, 4], truncated=(1,))
    batch = mixture(episodes, rows=8).batch(0)
    model = actor_critic()
    found = value_targets(model, batch)
    last = torch.from_numpy(episodes[1].observations["obs"][-1:])
    with torch.no_grad():
        value = float(
            model.step({"obs": last}, torch.zeros(1, 0), torch.ones(1, dtype=torch.bool)).values
        )
    for column in range(8):
        of, step = (int(x) for x in batch.obs["obs"][0, column, :2])
        ahead = sum(GAMMA**k * r for k, r in enumerate(episodes[of].rewards[step:].tolist()))
        expected = ahead + (GAMMA ** (4 - step) * value if of == 1 else 0.0)
        assert float(found[0, column]) == pytest.approx(expected, rel=1e-4)


def learner(**kwargs: Any) -> MarwilLearner:
    made = MarwilLearner(actor_critic(), config(**kwargs), LearnerPlace(torch.device("cpu")))
    made.fit_units(mixture(recorded([30, 40]), rows=16))
    return made


def test_units_are_those_of_the_data() -> None:
    made, data = learner(), mixture(recorded([30, 40]), rows=16).parts[0]
    normaliser = made.model.normaliser
    assert normaliser is not None
    obs = torch.from_numpy(data.observations["obs"])
    normalised = normaliser({"obs": obs})["obs"]
    assert normalised.mean(0).abs().max() < 1e-4
    assert normalised.std(0, correction=0).sub(1).abs().max() < 1e-3
    assert float(made.model.value_scale) == pytest.approx(data.return_to_go.std(), rel=1e-4)


def test_a_frozen_encoder_takes_its_units_from_the_data_unless_it_has_some() -> None:
    """A new one that is held at first would see the data unnormalised for ever."""
    made = MarwilLearner(actor_critic(), config(), LearnerPlace(torch.device("cpu")))
    normaliser = made.model.normaliser
    assert normaliser is not None
    made.hold(("encoder",), 1000)
    made.fit_units(mixture(recorded([30, 40]), rows=16))
    first = copy.deepcopy(normaliser.state_dict())
    leaf = normaliser.leaf("obs")
    assert float(leaf.count) == 72 and normaliser.is_frozen
    made.fit_units(mixture(recorded([50]), rows=16))
    for name, tensor in normaliser.state_dict().items():
        assert torch.equal(tensor, first[name])


def test_better_actions_become_more_likely_than_by_cloning() -> None:
    """One state, in which action 2 is rewarded: cloning learns the data's frequencies."""
    episodes = recorded([1] * 400)
    for number, episode in enumerate(episodes):
        episode.observations["obs"][:] = 0.0
        episode.actions["action"][:] = number % 4
        episode.rewards[:] = float(number % 4 == 2)
    data = mixture(episodes, rows=100)
    chosen = {}
    for exponent in (0.0, 2.0):
        made = MarwilLearner(
            actor_critic(normalise_observations=False, separate_critic=True),
            config(advantage_exponent=exponent, learning_rate=0.05),
            LearnerPlace(torch.device("cpu")),
        )
        made.fit_units(data)
        for number in range(60):
            metrics = made.update(data.batch(number), 0.0).metrics
        state, first = torch.zeros(1, 0), torch.ones(1, dtype=torch.bool)
        out = made.model.step({"obs": torch.zeros(1, 3)}, state, first)
        chosen[exponent] = out.parameters.softmax(-1)[0, 2].item()
    assert chosen[0.0] == pytest.approx(0.25, abs=0.02)
    assert chosen[2.0] > 0.8
    assert metrics["value_mean"] == pytest.approx(0.25, abs=0.05)


def test_a_restored_learner_continues_bit_by_bit() -> None:
    data = mixture(recorded([30, 40], truncated=(0,)), rows=16)
    one, other = learner(), learner()
    for number in range(3):
        one.update(data.batch(number), 0.0)
    one.change({"max_advantage_weight": 3.0})
    other.load(*one.state())
    assert other.version == 3
    for number in range(3, 6):
        mine, its = (each.update(data.batch(number), 0.0) for each in (one, other))
        assert mine == its
    for name, tensor in one.state()[0].items():
        assert tensor.equal(other.state()[0][name]), name


def test_a_step_that_is_not_finite_is_skipped() -> None:
    made = learner()
    before = {n: t.clone() for n, t in made.model.state_dict().items()}
    batch = mixture(recorded([30, 40]), rows=16).batch(0)
    broken = dataclasses.replace(batch, return_to_go=batch.return_to_go * float("nan"))
    assert made.update(broken, 0.0).metrics["skipped_steps"] == 1.0 and made.version == 1
    assert all(t.equal(before[n]) for n, t in made.model.state_dict().items())
    assert made.update(batch, 0.0).metrics["skipped_steps"] == 0.0

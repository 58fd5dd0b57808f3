"""PQN: its returns and loss against the literal equations, and its exploration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sampleforge.algorithms.experience import Experience
from sampleforge.algorithms.pqn.algorithm import falling_epsilon
from sampleforge.algorithms.pqn.loss import PqnLoss
from sampleforge.models.q_network import QNetwork
from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.spec import ACTION
from sampleforge.topologies.config import PqnConfig
from sampleforge.topologies.registry import pairing
from tests.support.graphs import spec_of
from tests.support.pairings import network_maker

GAMMA, LAMBDA = 0.9, 0.65


def config(**more: Any) -> PqnConfig:
    asked = PqnConfig(env="CartPole-v1", gamma=GAMMA, return_lambda=LAMBDA, **more)
    found: PqnConfig = pairing(asked).resolve_defaults(asked, spec_of(asked))
    return found


def network(**more: Any) -> QNetwork:
    chosen = config(normalise_returns=False, **more)
    made: QNetwork = network_maker(chosen, spec_of(chosen), 1)()
    return made


def experience(model: QNetwork, steps: int = 7, rows: int = 5, seed: int = 0) -> Experience:
    """Random steps, with ends of both kinds, and values by the network itself."""
    generator = torch.Generator().manual_seed(seed)

    def chance(share: float) -> torch.Tensor:
        return torch.rand(steps, rows, generator=generator) < share

    obs = {"obs": torch.randn(steps + 1, rows, 4, generator=generator)}
    terminated = chance(0.2)
    truncated = chance(0.1) & ~terminated
    with torch.no_grad():
        q = model.q_values({"obs": obs["obs"].flatten(0, 1)}).unflatten(0, (steps + 1, rows))
    return Experience(
        obs=obs,
        is_first=torch.zeros(steps + 1, rows, dtype=torch.bool),
        state=torch.zeros(rows, 0),
        actions={ACTION: torch.randint(2, (steps, rows), generator=generator)},
        acted={"value": q[:-1].amax(-1)},
        reward=torch.randn(steps, rows, generator=generator),
        terminated=terminated,
        truncated=truncated,
        trace_cut=terminated | truncated,
        step_mask=torch.ones(steps, rows, dtype=torch.bool),
        mask=chance(0.8),
    )


def literal_returns(model: QNetwork, of: Experience) -> torch.Tensor:
    """G_t = r_t + gamma ((1 - lambda) max_a Q(o_{t+1}, a) + lambda G_{t+1}), which ends with the
    episode and, at a truncation and at the end of the rollout, with the value of what follows."""
    steps, rows = of.reward.shape
    best = model.q_values({"obs": of.obs["obs"].flatten(0, 1)}).amax(-1).unflatten(0, (-1, rows))
    returns = torch.zeros(steps, rows)
    for row in range(rows):
        for t in reversed(range(steps)):
            after = best[t + 1, row]
            if of.terminated[t, row]:
                returns[t, row] = of.reward[t, row]
            elif of.truncated[t, row] or t == steps - 1:
                returns[t, row] = of.reward[t, row] + GAMMA * after
            else:
                mixed = (1 - LAMBDA) * after + LAMBDA * returns[t + 1, row]
                returns[t, row] = of.reward[t, row] + GAMMA * mixed
    return returns


@pytest.mark.parametrize("seed", range(5))
def test_returns_are_those_of_the_paper(seed: int) -> None:
    model = network()
    sampled = experience(model, seed=seed)
    prepared = PqnLoss(config(), GAMMA).prepare(model, sampled)
    assert prepared.targets is not None
    torch.testing.assert_close(prepared.targets, literal_returns(model, sampled))


def test_the_loss_is_half_the_mean_squared_error_of_the_actions_taken() -> None:
    model, loss = network(), PqnLoss(config(), GAMMA)
    prepared = loss.prepare(model, experience(model))
    found, _ = loss(model, prepared)
    assert prepared.targets is not None
    errors = []
    for t, row in prepared.mask.nonzero().tolist():
        q = model.q_values({"obs": prepared.obs["obs"][t, row].unsqueeze(0)})[0]
        errors.append((q[prepared.actions[ACTION][t, row]] - prepared.targets[t, row]) ** 2 / 2)
    torch.testing.assert_close(found, torch.stack(errors).mean())
    found.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.heads.parameters())


def test_a_scale_given_as_a_number_is_taken_where_none_was_known() -> None:
    """As after a run with normalised returns that saw no reward: --no-normalise-returns begins."""
    model = network()
    model.value_scale.zero_()
    model.rescale_values(1.0)
    assert model.value_scale.item() == 1.0
    model.rescale_values(0.0)
    assert model.value_scale.item() == 1.0


def test_steps_that_do_not_count_change_nothing() -> None:
    model, loss = network(), PqnLoss(config(), GAMMA)
    prepared = loss.prepare(model, experience(model))
    assert prepared.targets is not None and not prepared.mask.all()
    before = loss(model, prepared)[0].item()
    prepared.targets[~prepared.mask] += 1000.0
    assert loss(model, prepared)[0].item() == before


def test_values_are_in_the_unit_of_the_returns_whatever_the_scale() -> None:
    model = network()
    obs = {"obs": torch.randn(6, 4)}
    before = model.q_values(obs)
    model.rescale_values(torch.tensor(50.0))
    torch.testing.assert_close(model.q_values(obs), before)
    assert model.value_scale == 50.0


def test_epsilon_falls_on_a_line_and_stays_at_its_end() -> None:
    chosen = config(epsilon_first=1.0, epsilon_last=0.1, epsilon_env_steps=1000)
    counters = Counters(("env_steps",), 2)
    progress = Progress(counters, TrainingClock(), base_env_steps=100)
    found = []
    for steps in (0, 400, 900, 5000):
        counters.row(0)["env_steps"][0] = steps
        found.append(falling_epsilon(chosen, progress))
    assert found == pytest.approx([0.91, 0.55, 0.1, 0.1])


def test_the_fall_takes_a_tenth_of_the_training() -> None:
    assert config(train_for_env_steps=50_000).epsilon_env_steps == 5_000
    assert config(train_for_env_steps=10**9).epsilon_env_steps == 1_000_000
    assert config().epsilon_env_steps == 100_000

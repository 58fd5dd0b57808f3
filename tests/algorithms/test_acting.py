"""Acting: when weights are copied, what is drawn from a seed, and choosers of other algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import Acting, ActingPlace, Chooser
from sampleforge.algorithms.exploring import epsilon_greedy
from sampleforge.algorithms.sampling import Stochastic, sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.cnn import ImageEncoder
from sampleforge.models.config import ModelConfig
from sampleforge.models.forward import autocast
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.shared.counters import Counters, Progress, TrainingClock
from sampleforge.shared.newest import SharedWeights
from sampleforge.spec import ActionSpec, ArraySpec
from sampleforge.topologies.graph import COUNTERS
from tests.support.learners import config, model_of
from tests.support.q_learning import network

ROWS = 8


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pendulum() -> ActorCritic:
    return model_of(config(env="Pendulum-v1"))


def inputs(size: int, rows: int = ROWS) -> tuple[Any, ...]:
    obs = {"obs": torch.rand(rows, size, generator=generator())}
    return obs, torch.zeros(rows, 0), torch.zeros(rows, dtype=torch.bool), torch.arange(rows)


class Uniform(Chooser):
    """Uniform actions before ``begin`` env steps of the run, as SAC has them; ``then`` what follows
    chooses."""

    def __init__(self, generator: torch.Generator, progress: Progress, begin: int) -> None:
        self._generator, self._progress, self._begin = generator, progress, begin
        self._then = Stochastic(generator)

    def begin(self) -> bool:
        return self._progress.env_steps >= self._begin

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self._progress.env_steps >= self._begin:
            return self._then(distribution, is_first, rows)
        mean = distribution.mode()["action"]
        return {"action": torch.empty_like(mean).uniform_(-2.0, 2.0, generator=self._generator)}

    def recorded(self, *args: Any) -> dict[str, torch.Tensor]:
        raise NotImplementedError


class Ladder(Chooser):
    """The most likely action and noise, of another size in each env row, as in TD3."""

    def __init__(self, place: ActingPlace) -> None:
        assert place.ladder is not None
        self._generator, self._sizes = place.generator, place.ladder

    def __call__(
        self, distribution: ActionDistribution, is_first: torch.Tensor, rows: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        mean = distribution.mode()["action"]
        noise = torch.empty_like(mean).normal_(generator=self._generator)
        return {"action": mean + self._sizes[rows].unsqueeze(-1) * noise}

    def recorded(self, *args: Any) -> dict[str, torch.Tensor]:
        raise NotImplementedError


def nothing(*args: Any) -> dict[str, torch.Tensor]:
    return {}


def test_uniform_actions_until_learning_starts_need_a_chooser_alone() -> None:
    counters = Counters(COUNTERS, 1)
    progress, model = Progress(counters, TrainingClock()), pendulum()
    place = ActingPlace(generator(), progress=progress)
    choose = Uniform(place.generator, progress, begin=100)
    acting = Acting(model, SharedWeights(model.state_dict()), place, choose, nothing)
    first = acting.act(*inputs(3, 1000))
    assert first.extras == {}
    actions = first.actions["action"]
    assert actions.abs().max() <= 2.0 and actions.std().item() > 1.1, "of U(-2, 2) it is 1.155"
    counters.row(0)["env_steps"][0] = 100
    later = acting.act(*inputs(3, 1000)).actions["action"]
    assert later.abs().max() > 2.0, "of N(0, 1)"


def test_a_ladder_of_noise_needs_a_chooser_alone() -> None:
    model = pendulum()
    place = ActingPlace(generator(), ladder=torch.tensor([0.0, 0.1, 10.0]))
    acting = Acting(model, SharedWeights(model.state_dict()), place, Ladder(place), nothing)
    acting.refresh()
    obs, state, no, _ = inputs(3, 3000)
    rows = torch.arange(3000) % 3
    found = acting.act(obs, state, no, rows).actions["action"]
    away = found - model.distribution(model.step(obs, state, no).parameters, obs).mode()["action"]
    for row, size in enumerate(place.ladder.tolist()):  # type: ignore[union-attr]
        np.testing.assert_allclose(away[rows == row].detach().std(), size, rtol=0.1)


def test_given_actions_are_taken_and_valued() -> None:
    model = network(1)
    taken = torch.tensor([3, 1, 0, 2, 3, 3, 0, 1])
    given: Mapping[str, Any] = {"action": taken.numpy()}
    place = ActingPlace(generator(), given=lambda: given)
    acting = epsilon_greedy(model, SharedWeights(model.state_dict()), place, refresh_interval=0)
    acted = acting.act(*inputs(3))
    assert torch.equal(acted.actions["action"], taken)
    q = model.q_values(inputs(3)[0])
    torch.testing.assert_close(acted.extras["taken"], q[range(ROWS), taken])
    torch.testing.assert_close(acted.extras["value"], q.max(-1).values)


def test_a_new_seed_begins_anew_and_takes_the_newest_weights_at_once() -> None:
    model, seeds = network(1), iter([None, 7, None, 7])
    weights = SharedWeights(model.state_dict())
    place = ActingPlace(generator(7), new_seed=lambda: next(seeds), ladder=torch.ones(ROWS))
    acting = epsilon_greedy(network(2), weights, place, refresh_interval=10_000)
    drawn = []
    for version in range(4):
        weights.publish(model.state_dict(), version)
        acting.refresh()
        drawn.append((acting.version, acting.act(*inputs(3)).actions["action"].tolist()))
    versions, actions = zip(*drawn, strict=True)
    assert versions == (0, 1, 1, 3)
    assert actions[0] == actions[1] == actions[3] != actions[2]


def test_sampling_looks_for_newer_weights_each_time() -> None:
    model = pendulum()
    weights = SharedWeights(model.state_dict())
    acting = sampling(pendulum(), weights, ActingPlace(generator()))
    for version in (3, 4):
        weights.publish(model.state_dict(), version)
        acting.refresh()
        assert acting.version == version, "also if it has not acted in between"


SCREEN = {"obs": ArraySpec((4, 84, 84), "uint8")}
CHOICE = {"action": ActionSpec("discrete", (), "int64", (6,))}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layer_norm": True, "normalise_images": True},
        {"encoder": "impala_resnet"},
        {"core": "gru", "separate_critic": True},
    ],
)
def test_acting_in_bf16_holds_its_weights_in_bf16_with_the_same_results(
    settings: dict[str, Any],
) -> None:
    """As autocast has them, which converts all weights in every pass."""

    def model(seed: int) -> ActorCritic:
        torch.manual_seed(seed)
        return ActorCritic(ModelConfig(**settings), SCREEN, CHOICE)

    newest = model(2)
    acts = model(1)
    weights = SharedWeights(newest.state_dict())
    acting = sampling(acts, weights, ActingPlace(generator(), precision="bf16"))
    weights.publish(newest.state_dict(), 1)
    acting.refresh()
    convolutions = [m.weight for m in acts.modules() if isinstance(m, torch.nn.Conv2d)]
    stems = 1 if acts.critic is None else 2  # they are scaled before
    assert [w.dtype for w in convolutions].count(torch.float32) == stems
    obs = {"obs": torch.randint(0, 256, (ROWS, 4, 84, 84), dtype=torch.uint8)}
    state, is_first = torch.randn(ROWS, newest.state_size), torch.arange(ROWS) % 2 == 0
    acted = acting.act(obs, state, is_first, torch.arange(ROWS))
    with torch.inference_mode(), autocast(torch.device("cpu"), "bf16"):
        output = newest.eval().step(obs, state, is_first)
    distribution = newest.distribution(output.parameters, obs)
    assert torch.equal(acted.extras["value"], output.values)
    assert torch.equal(acted.extras["log_prob"], distribution.log_prob(acted.actions))
    assert torch.equal(acted.state, output.state)


class AloneInFullPrecision(torch.nn.Module):
    """A user's own encoder, which knows better than autocast."""

    def __init__(self, observations: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        self.inner = ImageEncoder(observations, dataclasses.replace(config, encoder="nature_cnn"))
        self.out_features = self.inner.out_features

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(obs)  # type: ignore[no-any-return]


def test_a_users_encoder_that_switches_autocast_off_acts_in_bf16_too() -> None:
    model = ActorCritic(ModelConfig(encoder=f"{__name__}:AloneInFullPrecision"), SCREEN, CHOICE)
    acting = sampling(
        model, SharedWeights(model.state_dict()), ActingPlace(generator(), precision="bf16")
    )
    obs = {"obs": torch.zeros((ROWS, 4, 84, 84), dtype=torch.uint8)}
    none, no = torch.zeros(ROWS, 0), torch.zeros(ROWS, dtype=torch.bool)
    assert acting.act(obs, none, no, torch.arange(ROWS)).extras["value"].shape == (ROWS,)

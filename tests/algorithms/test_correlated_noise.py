"""Correlated noise of Box actions: each draw is N(0, 1), consecutive ones are as alike as asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sampleforge.algorithms.acting import ActingPlace
from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.algorithms.correlated_noise import CorrelatedNoise, correlated_noise
from sampleforge.algorithms.sac.algorithm import SAC
from sampleforge.algorithms.td3.algorithm import TD3
from sampleforge.config import ConfigError
from sampleforge.shared.newest import SharedWeights
from sampleforge.topologies.config import AppoConfig, SacConfig
from tests.support.graphs import rollouts
from tests.support.sac import SPEC, sac_config, td3_config

ROWS, SIZE, STEPS = 200, 2, 100
ALL, NONE = torch.ones(ROWS, dtype=torch.bool), torch.zeros(ROWS, dtype=torch.bool)
EACH = torch.arange(3, 4 * ROWS, 4)
"""The rows whose noise is correlated."""


def noise(correlation: float, seed: int = 1) -> CorrelatedNoise:
    return CorrelatedNoise(
        correlation, torch.arange(4 * ROWS), SIZE, torch.Generator().manual_seed(seed)
    )


def episode(source: CorrelatedNoise, steps: int = STEPS) -> torch.Tensor:
    """[steps, ROWS, SIZE] from the first step of an episode on."""
    return torch.stack([source.draw(EACH, NONE if step else ALL) for step in range(steps)])


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@pytest.mark.parametrize("asked", [0.3, 0.9])
def test_each_step_is_standard_normal_and_resembles_the_one_before(asked: float) -> None:
    """40,000 numbers; of .9 about 2,000 are independent."""
    drawn = episode(noise(asked))
    for part in (drawn, drawn[0], drawn[-1]):
        assert part.mean() == pytest.approx(0.0, abs=0.15)
        assert part.std() == pytest.approx(1.0, abs=0.1)
    assert (drawn.abs() < 1).float().mean() == pytest.approx(0.683, abs=0.03)
    assert correlation(drawn[:-1], drawn[1:]) == pytest.approx(asked, abs=0.03)
    assert correlation(drawn[:-2], drawn[2:]) == pytest.approx(asked**2, abs=0.05)


def test_rows_and_elements_are_independent() -> None:
    drawn = episode(noise(0.9), 400)
    assert abs(correlation(drawn[:, :-1], drawn[:, 1:])) < 0.05
    assert abs(correlation(drawn[..., 0], drawn[..., 1])) < 0.05


def test_an_episode_begins_anew_in_its_row_alone() -> None:
    source = noise(1.0)
    before = source.draw(EACH, ALL)
    after = source.draw(EACH, torch.arange(ROWS) < 100)
    assert (after[:100] != before[:100]).all() and torch.equal(after[100:], before[100:])


def test_rows_may_be_drawn_for_in_any_groups() -> None:
    """As the splits of actors ask; a row that is new in the middle of an episode begins there."""
    source = noise(1.0)
    second = source.draw(EACH[100:], ALL[100:])
    first = source.draw(EACH[:100], NONE[:100])
    assert first.std() == pytest.approx(1.0, abs=0.15)
    assert torch.equal(source.draw(EACH.flip(0), NONE).flip(0), torch.cat((first, second)))


def test_three_rows_of_four_are_independent_from_step_to_step() -> None:
    source = noise(0.9)
    others = EACH - 2
    drawn = torch.stack([source.draw(others, NONE if step else ALL) for step in range(STEPS)])
    assert abs(correlation(drawn[:-1], drawn[1:])) < 0.05
    assert drawn.std() == pytest.approx(1.0, abs=0.05)


def test_the_seed_alone_decides() -> None:
    assert torch.equal(episode(noise(0.5)), episode(noise(0.5)))
    assert not torch.equal(episode(noise(0.5)), episode(noise(0.5, seed=2)))


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_actions_of_a_run_are_correlated_within_episodes(inference: str) -> None:
    """Pendulum: the policy's mean is near 0 at first, so that actions are the noise."""
    chosen = AppoConfig(
        env="Pendulum-v1",
        async_rl=True,
        num_workers=1,
        num_envs_per_worker=8,
        inference=inference,  # type: ignore[arg-type]
        noise_correlation=0.9,
    )
    for given, least, most in ((0.9, 0.8, 1.0), (0.0, -0.2, 0.2)):
        found = []
        for batch in rollouts(AppoConfig(**{**vars(chosen), "noise_correlation": given}), 16):
            action, goes_on = batch.actions["action"][:, 3::4], ~batch.is_first[1:-1, 3::4]
            found.append(torch.stack((action[:-1][goes_on], action[1:][goes_on])))
        pairs = torch.cat(found, 1)
        assert least < correlation(pairs[0], pairs[1]) < most


@pytest.mark.parametrize("config", [AppoConfig, SacConfig])
def test_a_noise_correlation_above_one_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"--noise-correlation 1\.5: must be at least 0"):
        config(noise_correlation=1.5)


@pytest.mark.parametrize(
    ("algorithm", "config"), [(SAC, sac_config()), (TD3, td3_config(exploration_spread=1.0))]
)
def test_what_acts_for_a_replay_explores_with_the_noise_that_was_asked_for(
    algorithm: Algorithm, config: Any
) -> None:
    """The policy's mean stays the same, so that actions resemble the last ones as the noise does.
    They are squashed or clipped, which takes a little of it."""
    config = dataclasses.replace(config, noise_correlation=0.9, learning_starts=1)
    network = algorithm.new_network(config, SPEC)
    assert algorithm.new_acting is not None
    ladder = torch.full((4 * ROWS,), 0.1)
    place = ActingPlace(torch.Generator().manual_seed(1), ladder=ladder, num_rows=4 * ROWS)
    acting = algorithm.new_acting(config, network, SharedWeights(network.state_dict()), place)
    rows, none = torch.arange(4 * ROWS), torch.zeros(4 * ROWS, 0)
    obs, goes_on = {"obs": torch.zeros(4 * ROWS, 3)}, torch.zeros(4 * ROWS, dtype=torch.bool)
    drawn = torch.stack([acting.act(obs, none, goes_on, rows).actions["action"] for _ in range(50)])
    drawn = (drawn - drawn.mean((0, 1))) / drawn.std((0, 1))
    resembles = [correlation(drawn[:-1, i::4], drawn[1:, i::4]) for i in range(4)]
    assert all(abs(found) < 0.05 for found in resembles[:3])
    assert resembles[3] == pytest.approx(0.88, abs=0.04)


@pytest.mark.parametrize(("split_rows", "seats"), [(2, 2), (1, 2), (2, 3), (4, 1), (8, 2)])
def test_all_agents_of_every_fourth_env_row_explore_with_it(split_rows: int, seats: int) -> None:
    """Also where a split has fewer than four rows: else it would be those of one agent alone."""
    network: Any = SAC.new_network(sac_config(), SPEC)
    splits = 16 // split_rows
    place = ActingPlace(torch.Generator(), num_rows=16 * seats, split_rows=split_rows, seats=seats)
    noise = correlated_noise(0.7, network, place)
    assert noise is not None
    independent = noise.is_independent(torch.arange(16 * seats))
    of_seats = independent.view(splits, seats, split_rows).transpose(0, 1).reshape(seats, 16)
    assert of_seats.tolist() == [[row % 4 != 3 for row in range(16)]] * seats

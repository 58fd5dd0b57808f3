"""Estimates from another policy's episodes: their expectations, their limits, their intervals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sampleforge.tools.estimate.estimates import (
    Terms,
    Trajectories,
    cumulative_ratios,
    effective_episodes,
    estimates,
    terms,
    too_large,
)
from tests.support.tabular import TabularTask


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expectations_over_all_trajectories_are_the_truth(seed: int) -> None:
    """Enumerated: importance sampling, per-decision and doubly robust (with any q) are unbiased;
    the weighted estimate of the whole population is the truth as well, because its weights sum to
    one."""
    task = TabularTask.random(seed)
    trajectories, probability = task.enumerated()
    assert probability.sum() == pytest.approx(1.0, abs=1e-12) and len(probability) > 1000
    assert not trajectories.taken.all(), "some must end before the horizon"
    named, truth = terms(trajectories, task.gamma), task.truth()
    assert set(named) == {"is", "wis", "pdis", "dr"}
    for name, (x, y) in named.items():
        assert abs((probability @ x) / (probability @ y) - truth) < 1e-10, name
    biased = probability @ (named["wis"].x / np.maximum(named["wis"].y, 1e-300))
    assert abs(biased - truth) > 0.01, "the behaviour policy's own return differs"


def test_the_weighted_estimate_converges_to_the_truth() -> None:
    task, rng = TabularTask.random(1), np.random.default_rng(0)
    errors = []
    for episodes in (100, 10_000, 300_000):
        x, y = terms(task.sampled(episodes, rng), task.gamma)["wis"]
        errors.append(abs(x.sum() / y.sum() - task.truth()))
    assert errors[2] < 0.03 and errors[2] < errors[0]


def test_a_perfect_q_function_takes_the_variance_of_a_deterministic_task_away() -> None:
    """D_t telescopes to v(s_0) if q is the target policy's own and nothing else is random."""
    rng = np.random.default_rng(0)
    target, behaviour, reward = 0.8, 0.5, np.array([1.0, 3.0])  # one state, two actions, 3 steps
    action = rng.integers(0, 2, (50, 3))
    mean = target * reward[1] + (1 - target) * reward[0]
    ahead = mean * np.array([2, 1, 0])
    trajectories = Trajectories(
        taken=np.ones((50, 3), bool),
        log_ratio=np.log(np.where(action == 1, target, 1 - target) / behaviour),
        reward=reward[action],
        q=reward[action] + ahead,
        v=np.tile(mean + ahead, (50, 1)),
    )
    found = estimates(terms(trajectories, 1.0))
    assert found["dr"].value == pytest.approx(3 * mean) and found["dr"].error < 1e-9
    assert found["is"].error > 0.1


def coverage(draws: int, episodes: int, replicates: int) -> dict[str, float]:
    """How often the 95% interval of each estimate covers the truth."""
    task = TabularTask.random(2)
    truth, covered = task.truth(), dict.fromkeys(("is", "wis", "pdis", "dr"), 0)
    for draw in range(draws):
        sample = task.sampled(episodes, np.random.default_rng([7, draw]))
        found = estimates(terms(sample, task.gamma), replicates=replicates, seed=draw)
        for name, each in found.items():
            covered[name] += each.low <= truth <= each.high
    return {name: count / draws for name, count in covered.items()}


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """200 draws: the standard deviation of the fraction is 1.5%."""
    for name, fraction in coverage(200, 500, 300).items():
        assert 0.9 <= fraction <= 0.99, (name, fraction)


@pytest.mark.slow
def test_intervals_cover_the_truth_in_93_to_97_percent_of_1000_draws() -> None:
    for name, fraction in coverage(1000, 1000, 500).items():
        assert 0.93 <= fraction <= 0.97, (name, fraction)


def test_the_effective_number_of_episodes_follows_the_weights() -> None:
    assert effective_episodes(np.full(7, 3.0)) == pytest.approx(7.0)
    assert effective_episodes(np.array([0.0, 5.0, 0.0])) == pytest.approx(1.0)
    assert effective_episodes(np.array([1e200, 1e200])) == pytest.approx(2.0)
    assert effective_episodes(np.zeros(3)) == 0.0


def test_clipped_ratios_stay_below_the_limit_and_hold_after_the_end() -> None:
    log_ratio = np.log(np.array([[2.0, 3.0, 5.0], [0.5, 9.0, 9.0]]))
    taken = np.array([[True, True, True], [True, False, False]])
    of = Trajectories(taken, log_ratio, np.ones((2, 3)))
    assert cumulative_ratios(of) == pytest.approx(np.array([[2, 6, 30], [0.5, 0.5, 0.5]]))
    assert cumulative_ratios(of, 4.0) == pytest.approx(np.array([[2, 4, 4], [0.5, 0.5, 0.5]]))


def test_what_cannot_be_estimated_is_refused() -> None:
    never = Trajectories(np.ones((3, 2), bool), np.full((3, 2), -np.inf), np.ones((3, 2)))
    with pytest.raises(ValueError, match="never takes"):
        terms(never, 1.0)
    with pytest.raises(ValueError, match="1 episodes give no interval"):
        estimates({"is": Terms(np.ones(1), np.ones(1))})


@pytest.mark.parametrize("max_ratio", [None, 2.0])
def test_products_of_ratios_that_vanish_are_weighted_all_the_same(max_ratio: float | None) -> None:
    """exp(-1000) is 0 in float64, but no action is one that the policy never takes."""
    noise = np.random.default_rng(0).normal(size=(100, 500))
    for log_ratio in (np.full((100, 500), -2.0), noise - 2.0):
        of = Trajectories(np.ones((100, 500), bool), log_ratio, np.ones((100, 500)))
        named = terms(of, 1.0, max_ratio)
        assert estimates(named)["wis"] == pytest.approx((500.0, 500.0, 500.0, 0.0), abs=1e-4)
    assert effective_episodes(named["wis"].y) < 5, "with noise a few episodes have all the weight"


def test_huge_products_of_ratios_give_numbers_and_are_counted() -> None:
    rng = np.random.default_rng(0)
    log_ratio = np.ones((100, 450)) + rng.normal(size=(100, 450)) / 10
    zeros = np.zeros((100, 450))
    of = Trajectories(np.ones((100, 450), bool), log_ratio, zeros + 1.0, q=zeros, v=zeros)
    assert too_large(of) == 0
    for name, each in estimates(terms(of, 1.0)).items():
        assert np.isfinite(each).all() and each.low <= each.value <= each.high, (name, each)
    assert estimates(terms(of, 1.0))["is"].value > 1e190, "whose square is beyond float64"
    larger = dataclasses.replace(of, log_ratio=of.log_ratio * 4)
    assert too_large(larger) == 100
    for name, each in estimates(terms(larger, 1.0)).items():
        assert np.isfinite(each).all(), (name, each)


def test_the_interval_of_39_replicates_has_the_extremes_as_its_ends() -> None:
    """The 1st and the 39th of 39 have 2.5% of further replicates beyond each. For normal numbers
    they are 4.3 standard errors apart, the ends that numpy interpolates by default 3.6."""
    rng, widths = np.random.default_rng(0), []
    for seed in range(60):
        numbers = rng.normal(size=200)
        found = estimates({"is": Terms(numbers, np.ones(200))}, replicates=39, seed=seed)["is"]
        widths.append((found.high - found.low) / found.error)
    assert 4.15 < np.mean(widths) < 4.45

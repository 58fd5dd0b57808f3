"""The aggregate scores of Agarwal et al. 2021 and their intervals, beside literal enumeration."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from sampleforge.tools.compare.statistics import (
    LARGEST,
    bootstrap,
    estimated,
    interval,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (3, 1), (4, 1), (2, 3), (5, 2), (3, 7)])
def test_aggregates_are_those_of_the_paper(runs: int, tasks: int) -> None:
    scores = np.random.default_rng(runs + 10 * tasks).normal(0.8, 0.5, (runs, tasks))
    every = sorted(float(score) for row in scores for score in row)
    quarter = len(every) // 4
    middle = every[quarter : len(every) - quarter]
    assert iqm(scores) == pytest.approx(sum(middle) / len(middle))
    means = sorted(sum(scores[:, task]) / runs for task in range(tasks))
    of_tasks = sorted(scores[:, 0]) if tasks == 1 else means
    halves = of_tasks[(len(of_tasks) - 1) // 2], of_tasks[len(of_tasks) // 2]
    assert median(scores) == pytest.approx(sum(halves) / 2)
    assert mean(scores) == pytest.approx(sum(means) / tasks)
    missing = [1.0 - min(1.0, score) for score in every]
    assert optimality_gap(scores) == pytest.approx(sum(missing) / len(every))
    stacked = np.stack([scores, scores + 1.0])
    assert iqm(stacked) == pytest.approx([float(iqm(scores)), float(iqm(scores)) + 1.0])


def test_extreme_runs_do_not_move_the_iqm() -> None:
    scores = np.array([[0.1], [0.5], [0.7], [0.9]])
    assert iqm(scores) == pytest.approx(0.6)
    scores[3], scores[0] = 100.0, -50.0
    assert iqm(scores) == pytest.approx(0.6)


def test_the_probability_of_improvement_counts_all_pairs_of_each_task() -> None:
    ours = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 0.0]])
    theirs = np.array([[2.0, 5.0], [0.0, 9.0]])
    expected = []
    for task in range(2):
        pairs = product(ours[:, task], theirs[:, task])
        wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
        expected.append(sum(wins) / len(wins))
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(expected))
    both = probability_of_improvement(ours, theirs) + probability_of_improvement(theirs, ours)
    assert both == pytest.approx(1.0)


def test_a_profile_is_the_fraction_of_runs_above_each_score() -> None:
    scores = np.array([[0.0, 1.0], [0.5, 2.0]])
    levels = np.array([-1.0, 0.0, 0.75, 2.0])
    assert performance_profile(scores, levels).tolist() == [1.0, 0.75, 0.5, 0.0]


def test_resamples_are_those_of_all_combinations_within_each_task() -> None:
    """Of two runs and two tasks there are 16 equally likely resamples."""
    scores = np.array([[0.0, 10.0], [1.0, 30.0]])
    columns = [list(product(column, repeat=2)) for column in scores.T]
    exact = Counter(round(sum(one) / 4 + sum(other) / 4, 6) for one, other in product(*columns))
    drawn = Counter(np.round(bootstrap(mean, scores, resamples=40_000), 6).tolist())
    assert drawn.keys() == exact.keys()
    for value, count in exact.items():
        assert drawn[value] / 40_000 == pytest.approx(count / 16, abs=0.01)


def test_large_samples_are_resampled_in_parts() -> None:
    """A resample of the pairs of two samples takes a ninth of the memory limit here."""
    side = int((LARGEST / 9) ** 0.5)
    ours = np.arange(side, dtype=np.float64)[:, None]
    values = bootstrap(probability_of_improvement, ours, ours, resamples=10)
    assert values.shape == (10,) and len(set(values.tolist())) == 10


@pytest.mark.long
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of 10 runs on 4 tasks; percentile intervals of few runs are a little too narrow."""
    random = np.random.default_rng(7)
    centres = np.array([0.2, 0.5, 0.9, 1.5])
    truth = float(iqm(random.normal(centres, 0.3, (200_000, 4))))
    covered = {"iqm": 0, "improvement": 0}
    for _ in range(200):
        ours, theirs = random.normal(centres, 0.3, (2, 10, 4))
        low, high = interval(bootstrap(iqm, ours, resamples=500))
        covered["iqm"] += bool(low <= truth <= high)
        chance = estimated(probability_of_improvement, ours, theirs, resamples=500)
        assert chance.low is not None and chance.high is not None
        covered["improvement"] += chance.low <= 0.5 <= chance.high
    assert all(0.87 < number / 200 < 0.99 for number in covered.values()), covered


def test_one_run_has_no_interval() -> None:
    assert estimated(mean, np.array([[1.0, 3.0]]), resamples=100) == (2.0, None, None)

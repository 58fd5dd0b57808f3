"""Aggregate scores of runs with interval estimates, after Agarwal et al. 2021, "Deep reinforcement
learning at the edge of the statistical precipice" (arXiv 2108.13264).

Scores are arrays [..., runs, tasks]: column t has the scores of independent runs (seeds) on task t.
Statistics reduce the last two axes. Intervals come from the stratified bootstrap: the runs of each
task are drawn again, with replacement, independently of the other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
"""Probability with which an interval covers the truth."""
LARGEST = 4_000_000
"""Numbers that a part of the resamples may take at a time."""


class Statistic(NamedTuple):
    """A statistic, with the ends of its interval; they are None where there is only one run per
    task."""

    value: float
    low: float | None = None
    high: float | None = None


def iqm(scores: Floats) -> Floats:
    """Return the interquartile mean over all runs and tasks together: the mean without the lowest
    and the highest quarter of the scores. A quarter is rounded down to whole scores, as in
    scipy's ``trim_mean``."""
    together = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    count = together.shape[-1]
    cut = count // 4
    return np.asarray(together[..., cut : count - cut].mean(axis=-1))


def mean(scores: Floats) -> Floats:
    """Return the mean over all runs and tasks."""
    return np.asarray(scores.mean(axis=(-2, -1)))


def median(scores: Floats) -> Floats:
    """Return the median over the tasks of the mean over a task's runs. With one task, this would be
    the mean; it is the median of the runs then."""
    if scores.shape[-1] == 1:
        return np.asarray(np.median(scores[..., 0], axis=-1))
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def optimality_gap(scores: Floats) -> Floats:
    """Return the mean amount by which normalised scores fall short of 1; what is above 1 does not
    make up for it."""
    return np.asarray(1.0 - np.minimum(scores, 1.0).mean(axis=(-2, -1)))


def probability_of_improvement(ours: Floats, theirs: Floats) -> Floats:
    """Return the probability that a run of ``ours`` [..., N, tasks] has a higher score than a run
    of ``theirs`` [..., M, tasks] on a random task; equal scores count half."""
    one, other = ours[..., :, None, :], theirs[..., None, :, :]
    return np.asarray(((one > other) + 0.5 * (one == other)).mean(axis=(-3, -2, -1)))


def performance_profile(scores: Floats, thresholds: Floats) -> Floats:
    """Return the fraction of all runs whose score is above each of the ``thresholds`` [K], as
    [..., K]."""
    return np.stack([(scores > level).mean(axis=(-2, -1)) for level in thresholds], axis=-1)


def bootstrap(
    statistic: Callable[..., Floats], *samples: Floats, resamples: int, seed: int = 0
) -> Floats:
    """Return ``statistic(*samples)`` of as many stratified resamples of the samples, each [runs,
    tasks] and drawn independently, as [resamples, ...]."""
    random = np.random.default_rng(seed)
    tasks = samples[0].shape[1]
    size = tasks * int(np.prod([len(scores) for scores in samples]))
    parts = [
        statistic(*(_resampled(scores, count, random) for scores in samples))
        for count in _parts(resamples, max(1, LARGEST // size))
    ]
    return np.concatenate(parts)


def _parts(total: int, largest: int) -> Iterator[int]:
    """Yield numbers up to ``largest`` whose sum is ``total``."""
    for begin in range(0, total, largest):
        yield min(largest, total - begin)


def _resampled(scores: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return ``count`` stratified resamples of ``scores`` [runs, tasks] as [count, runs, tasks]."""
    runs, tasks = scores.shape
    drawn = random.integers(0, runs, (count, runs, tasks))
    return scores[drawn, np.arange(tasks)]


def interval(values: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the percentile interval of the statistics of resamples, [resamples,
    ...]."""
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
    return low, high


def estimated(statistic: Callable[..., Floats], *samples: Floats, resamples: int) -> Statistic:
    """Return a scalar ``statistic`` of samples, each [runs, tasks], with its interval; without one
    if any of them has a single run per task."""
    value = float(statistic(*samples))
    if min(len(scores) for scores in samples) < 2:
        return Statistic(value)
    low, high = interval(bootstrap(statistic, *samples, resamples=resamples))
    return Statistic(value, float(low), float(high))

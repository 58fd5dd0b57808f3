"""Estimates of a policy's return from episodes that another policy has played.

pi is the policy whose return is estimated, mu the behaviour policy that acted. For episode i of
``T_i`` steps, with rewards r_t, the discount gamma and the cumulative ratio
rho_t = prod_{k <= t} pi(a_k|s_k) / mu(a_k|s_k):

* importance sampling (Precup et al. 2000):       mean_i rho_{T-1} G_i,  G_i = sum_t gamma^t r_t
* weighted importance sampling (the same):        sum_i rho_{T-1} G_i / sum_i rho_{T-1}
* per-decision importance sampling (the same):    mean_i sum_t gamma^t rho_t r_t
* doubly robust (Jiang and Li 2016, eq. 10; Thomas and Brunskill 2016):
      mean_i D_0,  D_t = v(s_t) + ratio_t (r_t + gamma D_{t+1} - q(s_t, a_t)),  D_T = 0,
  with any functions q and v(s) = E_{a ~ pi} q(s, a) that do not depend on the episode itself.

All but the weighted one are unbiased; the weighted one is biased, converges to the truth, and
varies less. Each is a ratio of sums over episodes, sum_i x_i / sum_i y_i (y_i = 1 for means), and
that is what intervals are computed of. `draw_estimates` draws each with its interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.tools.plots.figures import GREY, INK, SMALL, WIDTH, save_figure

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LEAST_EFFECTIVE = 50.0
"""Effective number of episodes below which an estimate rests on a few episodes, and neither it nor
its interval can be relied on."""
LEAST_EPISODES = 2
"""Number of episodes without which there is no interval."""
_LARGEST_EXPONENT = 600.0  # exp of more, times a return, may overflow
_LARGEST = 1e250  # sums of the doubly robust estimate are cut off at it
_CHUNK = 4_000_000
"""Numbers that the bootstrap draws at a time, which bounds its memory."""


@dataclass(frozen=True)
class Trajectories:
    """N episodes of at most H steps, padded at their ends.

    ``taken`` bool [N, H]: the steps of an episode, which come first. ``log_ratio`` float64 [N, H]:
    log pi(a|s) - log mu(a|s), -inf for an action that pi never takes. ``reward`` float64 [N, H].
    ``q`` and ``v`` float64 [N, H]: q(s_t, a_t) and v(s_t) of the doubly robust estimate (None: it
    is not computed). Padding may hold anything.
    """

    taken: Flags
    log_ratio: Floats
    reward: Floats
    q: Floats | None = None
    v: Floats | None = None

    def __post_init__(self) -> None:
        columns = {"log_ratio": self.log_ratio, "reward": self.reward, "q": self.q, "v": self.v}
        for name, column in columns.items():
            if column is not None and column.shape != self.taken.shape:
                raise ValueError(
                    f"{name} has the shape {column.shape}, but taken {self.taken.shape}; all must "
                    "be [episodes, steps]"
                )
        if (self.q is None) != (self.v is None):
            raise ValueError("q and v belong together: give both, or neither")

    def __len__(self) -> int:
        return len(self.taken)


class Terms(NamedTuple):
    """An estimate is ``x.sum() / y.sum()``, both float64 [N], one number per episode."""

    x: Floats
    y: Floats


class Estimate(NamedTuple):
    """An estimated return, the ends of its confidence interval, and its standard error."""

    value: float
    low: float
    high: float
    error: float


def terms(of: Trajectories, gamma: float, max_ratio: float | None = None) -> dict[str, Terms]:
    """Return the terms of each estimate, by its name: ``is``, ``wis``, ``pdis`` and, if there are
    ``q`` and ``v``, ``dr``.

    ``max_ratio``: cumulative ratios (with ``dr`` those of single steps) are clipped to it, which
    makes the estimates vary less, and biases them (None: they are not clipped). The weights of
    ``wis``, its ``y``, are relative to the largest one, so that long products do not vanish. Raises
    ValueError if every episode has an action that pi never takes."""
    rho = cumulative_ratios(of, max_ratio)
    reward = np.where(of.taken, of.reward, 0.0)
    discounted = reward * gamma ** np.arange(reward.shape[1])
    weight, returns, ones = rho[:, -1], discounted.sum(1), np.ones(len(of))
    log_weight = _log_ratios(of)[:, -1]
    if np.isneginf(log_weight).all():
        raise ValueError(
            "each of the episodes has an action that the policy never takes, so they say nothing "
            "about its return; use episodes of a policy that takes all of its actions at times, or "
            "estimate the return of the policy that samples its actions"
        )
    if max_ratio is not None:
        log_weight = np.minimum(log_weight, np.log(max_ratio))
    relative = np.exp(log_weight - log_weight.max())
    named = {
        "is": Terms(weight * returns, ones),
        "wis": Terms(relative * returns, relative),
        "pdis": Terms((rho * discounted).sum(1), ones),
    }
    if of.q is not None and of.v is not None:
        named["dr"] = Terms(_doubly_robust(of, reward, gamma, max_ratio), ones)
    return named


def cumulative_ratios(of: Trajectories, max_ratio: float | None = None) -> Floats:
    """Return rho_t [N, H], which stays the same after the end of an episode."""
    rho: Floats = np.exp(np.minimum(_log_ratios(of), _LARGEST_EXPONENT))
    return rho if max_ratio is None else np.minimum(rho, max_ratio)


def too_large(of: Trajectories) -> int:
    """Return the number of episodes with a rho_t that is too large to compute with."""
    return int((_log_ratios(of) > _LARGEST_EXPONENT).any(1).sum())


def _log_ratios(of: Trajectories) -> Floats:
    """Return log rho_t [N, H]; see `cumulative_ratios`."""
    return np.cumsum(np.where(of.taken, of.log_ratio, 0.0), axis=1)


def _doubly_robust(
    of: Trajectories, reward: Floats, gamma: float, max_ratio: float | None
) -> Floats:
    """Return D_0 [N] of each episode."""
    assert of.q is not None and of.v is not None
    ratio = np.exp(np.minimum(np.where(of.taken, of.log_ratio, 0.0), _LARGEST_EXPONENT))
    if max_ratio is not None:
        ratio = np.minimum(ratio, max_ratio)
    ahead = np.zeros(len(of))
    with np.errstate(over="ignore"):
        for t in reversed(range(reward.shape[1])):
            now = of.v[:, t] + ratio[:, t] * (reward[:, t] + gamma * ahead - of.q[:, t])
            ahead = np.where(of.taken[:, t], now.clip(-_LARGEST, _LARGEST), 0.0)
    return ahead


def effective_episodes(weight: Floats) -> float:
    """Return the effective number of episodes with importance weights ``weight`` [N], at least 0:
    (sum w)^2 / sum w^2 (Kish 1965). It is N if all weights are equal, and 1 if one episode has all
    of the weight."""
    largest = weight.max(initial=0.0)
    if largest == 0.0:
        return 0.0
    scaled = weight / largest  # squares of large weights would overflow
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def estimates(
    named: Mapping[str, Terms],
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return each estimate with an interval that covers the truth with the probability ``level``.

    The interval is the studentised bootstrap (bootstrap-t; Efron and Tibshirani 1993, section
    12.5) over episodes: ``replicates`` times, N episodes are drawn with replacement, and the
    distribution of t = (replicate's estimate - estimate) / (replicate's standard error) takes the
    place of Student's. Unlike intervals of percentiles it follows the skewness of importance
    weights (benchmarks/results/offline.md compares their coverage). The same episodes are drawn for
    all estimates. Raises ValueError for fewer than `LEAST_EPISODES` episodes."""
    count = len(next(iter(named.values())).x)
    if count < LEAST_EPISODES:
        raise ValueError(
            f"{count} episodes give no interval; at least {LEAST_EPISODES} are needed, and "
            "hundreds for an interval that means something"
        )
    scale = np.array([np.abs(each.x).max() or 1.0 for each in named.values()])
    own = np.stack([_moments(each, s) for each, s in zip(named.values(), scale, strict=True)])
    whole = own.sum(2)  # of [estimates, 5, N]
    value, error = _ratio_and_error(whole, count)
    drawn = np.concatenate(
        [
            (times @ own.reshape(-1, count).T).reshape(-1, *whole.shape)
            for times in _resampled(count, replicates, np.random.default_rng(seed))
        ]
    )
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values, errors = _ratio_and_error(drawn, count)
        t = (values - value) / errors
    result = {}
    for index, name in enumerate(named):
        known = t[np.isfinite(t[:, index]), index]  # a replicate of equal episodes has no error
        ends = [(1 - level) / 2, (1 + level) / 2]
        # The k-th of B replicates is the quantile k / (B + 1), which covers what it says; numpy's
        # default is (k - 1) / (B - 1), which is a narrower interval.
        low, high = np.quantile(known, ends, method="weibull") if len(known) else (0, 0)
        centre, unit = value[index], error[index]
        numbers = np.array((centre, centre - high * unit, centre - low * unit, unit))
        result[name] = Estimate(*(scale[index] * numbers).tolist())
    return result


def _moments(of: Terms, scale: float) -> Floats:
    """Return x, y, x^2, x y, y^2 [5, N], with x divided by ``scale``, since the squares of large
    weights would overflow, and both scaled so that y has the mean 1."""
    x, y = of.x / scale / of.y.mean(), of.y / of.y.mean()
    return np.stack((x, y, x * x, x * y, y * y))


def _ratio_and_error(sums: Floats, count: int) -> tuple[Floats, Floats]:
    """Return sum x / sum y and its standard error (delta method), both [...], from the sums of
    `_moments` [..., 5] over ``count`` episodes."""
    x, y, xx, xy, yy = np.moveaxis(sums, -1, 0)
    ratio = x / y
    squares = np.maximum(xx - 2.0 * ratio * xy + ratio**2 * yy, 0.0)
    return ratio, np.sqrt(squares * count / (count - 1)) / y


def _resampled(count: int, replicates: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each of ``count`` episodes is drawn in each replicate, float64
    [some replicates, count] each."""
    at_once = max(1, _CHUNK // count)
    for start in range(0, replicates, at_once):
        rows = min(at_once, replicates - start)
        drawn = rng.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count)
        yield times.reshape(rows, count).astype(np.float64)


def draw_estimates(result: Mapping[str, Any], names: Mapping[str, str], out: Path) -> None:
    """Draw the estimates of ``result``, as `sampleforge.tools.estimate.estimation.estimate` returns
    them, and the mean return of the episodes themselves, into the file ``out``; its suffix is the
    format. ``names``: name of an estimate -> its label. Raises ConfigError if matplotlib is
    missing."""
    save_figure(lambda figure: _figure(figure, result, names), out)


def _figure(make_figure: Any, result: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    drawn = [name for name in names if name in result][::-1]
    figure = make_figure(figsize=(WIDTH, 1.1 + 0.42 * len(drawn)), layout="constrained")
    axis = figure.subplots()
    for row, name in enumerate(drawn):
        _draw(axis, row, result[name])
    axis.axvline(result["behaviour_return"], color=GREY, linewidth=1.0, linestyle="--", zorder=1)
    axis.set_yticks(range(len(drawn)), [names[name] for name in drawn])
    axis.set_ylim(-0.5, len(drawn) - 0.3)
    axis.set_xlabel(
        f"return, with {100 * result['level']:g}% intervals (dashed: mean return of the episodes "
        "themselves)"
    )
    axis.set_title(
        f"{result['episodes']:,} episodes, which count as "
        f"{result['episodes_effective']:,.1f} of the policy's own",
        loc="left",
    )
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _draw(axis: Any, row: int, estimate: Mapping[str, float]) -> None:
    """Draw one estimate as a point on the line of its interval, with its value above."""
    value = estimate["value"]
    axis.plot([estimate["low"], estimate["high"]], [row, row], color=INK, linewidth=1.5, zorder=2)
    axis.plot([value], [row], "o", color=INK, markersize=4.5, zorder=3)
    axis.annotate(
        f"{value:,.4g}",
        (value, row),
        (0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=SMALL,
    )

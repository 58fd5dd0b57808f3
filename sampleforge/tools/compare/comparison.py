"""The comparison of settings: aggregate scores with intervals, the probability that one setting is
better than another, performance profiles, and scores over env steps; and its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.tools.compare.scores import Scale, ScoredSetting, ScoreRule, scored_settings
from sampleforge.tools.compare.statistics import (
    Floats,
    Statistic,
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
from sampleforge.tools.plots.curves import Curves, aligned
from sampleforge.tools.plots.figures import GREY, TINY, WIDTH, plain_axes, save_figure

RESAMPLES = 5000
"""Default number of bootstrap resamples."""
CURVE_RESAMPLES, CURVE_POINTS = 1000, 60
"""Resamples of each point of a curve or profile, and the largest number of these points."""
METRICS: dict[str, Callable[[Floats], Floats]] = {
    "iqm": iqm,
    "median": median,
    "mean": mean,
    "optimality_gap": optimality_gap,
}
TITLES = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
LAST = ScoreRule()
NEEDS_SCALE = "optimality_gap"
"""The metric that only normalised scores have."""


@dataclass(frozen=True)
class Band:
    """A curve y over x, each [points], with the ends of its interval; they are None with one
    seed."""

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class ComparedSetting:
    """A setting: its ``scored`` runs, their ``scores`` (normalised if there is a scale), [seeds,
    envs]; ``aggregates`` by the name of the metric; the mean return in each environment, by its
    name; the ``profile`` (fraction of runs above a score) and the ``curve`` (IQM over env
    steps)."""

    scored: ScoredSetting
    scores: Floats
    aggregates: Mapping[str, Statistic]
    returns: Mapping[str, Statistic]
    profile: Band
    curve: Band

    @property
    def label(self) -> str:
        return self.scored.label


@dataclass(frozen=True)
class Comparison:
    """The result. ``scales``: environment -> scale, empty if scores are returns;
    ``improvements``: (label, other label) -> probability that the first is better; ``notes``: what
    the reader has to know."""

    envs: Sequence[str]
    scales: Mapping[str, Scale]
    settings: Sequence[ComparedSetting]
    improvements: Mapping[tuple[str, str], Statistic]
    rule: ScoreRule
    notes: Sequence[str]

    @property
    def unit(self) -> str:
        """The unit of scores."""
        return "normalised score" if self.scales else "return"

    def plain(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {
            "environments": list(self.envs),
            "unit": self.unit,
            "scales": {env: [scale.low, scale.high] for env, scale in self.scales.items()},
            "score": {"pick": self.rule.pick, "at": self.rule.at, "of": self.rule.unit},
            "settings": [_plain(setting, self.envs) for setting in self.settings],
            "improvements": [
                {"setting": one, "other": other, **estimate._asdict()}
                for (one, other), estimate in self.improvements.items()
            ],
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per estimate, for CSV."""
        rows: list[dict[str, Any]] = []
        for setting in self.settings:
            about = {"setting": setting.label, "seeds": setting.scored.seeds, "other": ""}
            for metric, estimate in setting.aggregates.items():
                rows.append({**about, "environment": "", "metric": metric, **estimate._asdict()})
            for env, estimate in setting.returns.items():
                each = {"environment": env, "metric": "mean_return"}
                rows.append({**about, **each, **estimate._asdict()})
        seeds = {setting.label: setting.scored.seeds for setting in self.settings}
        for (one, other), estimate in self.improvements.items():
            about = {"setting": one, "seeds": seeds[one], "environment": "", "other": other}
            rows.append({**about, "metric": "probability_of_improvement", **estimate._asdict()})
        return rows


def _plain(setting: ComparedSetting, envs: Sequence[str]) -> dict[str, Any]:
    scored = setting.scored
    return {
        "label": setting.label,
        "seeds": scored.seeds,
        **{name: estimate._asdict() for name, estimate in setting.aggregates.items()},
        "returns": {env: estimate._asdict() for env, estimate in setting.returns.items()},
        "runs": [
            {
                "run": run.name,
                "environment": envs[env],
                "return": scored.returns[seed, env],
                "score": setting.scores[seed, env],
                "env_steps": int(scored.env_steps[seed, env]),
            }
            for env, cell in enumerate(scored.runs)
            for seed, run in enumerate(cell)
        ],
        "curve": {name: _numbers(getattr(setting.curve, name)) for name in Band.__annotations__},
    }


def _numbers(values: Floats | None) -> list[float] | None:
    return None if values is None else values.tolist()


def compare(
    runs: Sequence[Curves],
    scales: Mapping[str, Scale],
    rule: ScoreRule = LAST,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Compare the settings of ``runs``. ``scales``: those of all environments; they may only be
    empty if there is one environment, whose returns are compared then. Raises ConfigError for runs
    that cannot be compared."""
    without = [run.name for run in runs if not run.is_evaluated()]
    rule = rule._replace(of_training=bool(without))
    envs, settings = scored_settings(runs, rule)
    missing = [env for env in envs if env not in scales]
    if missing and len(envs) > 1:
        raise ConfigError(
            f"the runs are in {len(envs)} environments ({', '.join(envs)}), whose returns cannot "
            f"be averaged as they are; say which returns count as 0 and as 1: --normalise "
            f"{' '.join(f'{env}=LOW..HIGH' for env in missing)}"
        )
    used = {} if missing else {env: scales[env] for env in envs}
    scores = [_normalised(setting, envs, used) for setting in settings]
    thresholds = _thresholds(np.concatenate([each.ravel() for each in scores]))
    compared = [
        ComparedSetting(
            setting,
            own,
            _aggregates(own, resamples, normalised=bool(used)),
            {
                env: estimated(mean, setting.returns[:, [i]], resamples=resamples)
                for i, env in enumerate(envs)
            },
            _profile(own, thresholds),
            _curve(setting, envs, used, rule),
        )
        for setting, own in zip(settings, scores, strict=True)
    ]
    improvements = {
        (one.label, other.label): estimated(
            probability_of_improvement, one.scores, other.scores, resamples=resamples
        )
        for one, other in permutations(compared, 2)
        if min(one.scored.seeds, other.scored.seeds) > 1
    }
    notes = _notes(compared, envs, rule)
    if without:
        more = f", nor have {len(without) - 1} more" if len(without) > 1 else ""
        notes.append(
            "Scores are mean returns of the last training episodes, in which policies explore: "
            f"{without[0]} has no evaluations (--evaluate-interval N of train){more}"
        )
    return Comparison(envs, used, compared, improvements, rule, notes)


def _normalised(setting: ScoredSetting, envs: Sequence[str], scales: Mapping[str, Scale]) -> Floats:
    """Return the scores of a setting, [seeds, envs]: its returns if there are no scales."""
    if not scales:
        return setting.returns
    return np.stack([scales[env](setting.returns[:, i]) for i, env in enumerate(envs)], axis=1)


def _aggregates(scores: Floats, resamples: int, *, normalised: bool) -> dict[str, Statistic]:
    return {
        name: estimated(metric, scores, resamples=resamples)
        for name, metric in METRICS.items()
        if normalised or name != NEEDS_SCALE
    }


def _thresholds(scores: Floats) -> Floats:
    """Return evenly spaced scores, from the lowest to the highest one."""
    low, high = float(scores.min()), float(scores.max())
    margin = 0.02 * (high - low) or 0.5
    return np.linspace(low - margin, high + margin, CURVE_POINTS)


def _profile(scores: Floats, thresholds: Floats) -> Band:
    def fractions(values: Floats) -> Floats:
        return performance_profile(values, thresholds)

    return _band(thresholds, fractions, scores)


def _curve(
    setting: ScoredSetting, envs: Sequence[str], scales: Mapping[str, Scale], rule: ScoreRule
) -> Band:
    """Return the IQM over env steps, as far as all runs have evaluations: between two evaluations
    of a run its scores are interpolated linearly."""
    lines = [line for env in range(len(envs)) for line in setting.lines(env, rule)]
    x, values = aligned(lines)  # values: [envs x seeds, points]
    x, values = (each[..., np.isfinite(values).all(axis=0)] for each in (x, values))
    if len(x) > CURVE_POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, CURVE_POINTS).round().astype(int))
        x, values = x[kept], values[:, kept]
    table = values.reshape(len(envs), setting.seeds, len(x)).transpose(1, 0, 2)
    if scales:
        table = np.stack([scales[env](table[:, i]) for i, env in enumerate(envs)], axis=1)
    if not len(x):
        return Band(x, np.zeros(0))
    bands = [_band(x[[i]], lambda v: iqm(v)[..., None], table[..., i]) for i in range(len(x))]
    ends = [
        None if bands[0].low is None else np.concatenate([getattr(band, name) for band in bands])
        for name in ("low", "high")
    ]
    return Band(x, np.concatenate([band.y for band in bands]), *ends)


def _band(x: Floats, statistic: Callable[[Floats], Floats], scores: Floats) -> Band:
    """Return a ``statistic`` [..., points] of scores [seeds, envs] with its interval."""
    if len(scores) < 2:
        return Band(x, statistic(scores))
    return Band(
        x, statistic(scores), *interval(bootstrap(statistic, scores, resamples=CURVE_RESAMPLES))
    )


def _notes(settings: Sequence[ComparedSetting], envs: Sequence[str], rule: ScoreRule) -> list[str]:
    notes = []
    single = [setting.label for setting in settings if setting.scored.seeds == 1]
    if single:
        notes.append(
            f"One seed of {'; '.join(single)}: an interval over seeds cannot be made of one, so "
            "only points are shown. Train the same with other seeds: --seed N"
        )
    elif (fewest := min(setting.scored.seeds for setting in settings)) < 5:
        notes.append(
            f"{fewest} seeds are few: such intervals are often too narrow (five and more are usual)"
        )
    for setting in settings:
        for env, cell in zip(envs, setting.scored.runs, strict=True):
            seeds = [run.config.get("seed") for run in cell]
            if len(set(seeds)) < len(seeds):
                notes.append(
                    f"{setting.label} in {env}: several runs have the same seed, so that they may "
                    "not be independent"
                )
    for index, env in enumerate(envs):
        each = np.concatenate([setting.scored.env_steps[:, index] for setting in settings])
        if each.max() > 1.05 * each.min():
            notes.append(
                f"{env}: the scores are from {each.min():,.0f} to {each.max():,.0f} env steps; "
                "--at ENV_STEPS compares at the same"
            )
    if rule.pick == "best":
        notes.append(f"The best {rule.unit} of a run is partly luck: its mean return is too high")
    return notes


ROW = 0.24
"""Height of a setting in the upper panels, in inches."""
PANEL = 2.3
"""Height of the lower panels in inches."""
LONGEST = 34
"""Letters of a label in the figure."""


def draw_comparison(comparison: Comparison, out: Path) -> None:
    """Draw a comparison into the file ``out``, whose suffix is the format. Raises ConfigError if
    matplotlib is missing."""
    save_figure(partial(_figure, comparison), out)


def _figure(comparison: Comparison, make_figure: Any) -> Any:
    rows, pairs = len(comparison.settings), len(comparison.improvements)
    upper = 0.75 + ROW * rows
    lower = PANEL + 0.3
    figure = make_figure(figsize=(WIDTH, upper + lower + 0.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(upper, lower))
    _draw_aggregates(above, comparison)
    panels: list[Callable[[Any, Comparison], None]] = [_draw_curve, _draw_profile]
    panels += [_draw_improvements] if pairs else []
    for axis, draw in zip(below.subplots(1, len(panels)), panels, strict=True):
        draw(axis, comparison)
        plain_axes(axis)
    shown = ", ".join(comparison.envs[:4]) + (
        f" and {len(comparison.envs) - 4} more" if len(comparison.envs) > 4 else ""
    )
    seeds = sorted({setting.scored.seeds for setting in comparison.settings})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if seeds[-1] == 1:
        text = "one seed: points without intervals"
    else:
        text = f"{number} seeds, 95% intervals by the stratified bootstrap"
    figure.suptitle(f"{shown}\n({text})")
    return figure


def _draw_aggregates(figure: Any, comparison: Comparison) -> None:
    """Draw a panel for each aggregate, with the settings below each other."""
    names = list(comparison.settings[0].aggregates)
    axes = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    places = range(len(comparison.settings))[::-1]
    for axis, name in zip(axes, names, strict=True):
        for number, (place, setting) in enumerate(zip(places, comparison.settings, strict=True)):
            _draw_estimate(axis, place, setting.aggregates[name], f"C{number % 10}")
        less = "\n(less is better)" if name == NEEDS_SCALE else ""
        axis.set_title(f"{TITLES[name]}{less}")
        axis.set_ylim(-0.6, len(places) - 0.4)
        axis.use_sticky_edges = False
        axis.margins(x=0.08)
        plain_axes(axis)
    axes[0].set_yticks(list(places), [_short(setting.label) for setting in comparison.settings])
    figure.supxlabel(comparison.unit, fontsize="medium")


def _draw_estimate(axis: Any, place: float, estimate: Statistic, color: str) -> None:
    """Draw the interval as a bar with the value as a line, or the value alone as a point."""
    if estimate.low is None or estimate.high is None:
        axis.plot([estimate.value], [place], "o", color=color, markersize=4.0)
        return
    width = estimate.high - estimate.low
    axis.barh(place, width, left=estimate.low, height=0.6, color=color, alpha=0.6)
    axis.plot([estimate.value] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.2)


def _draw_curve(axis: Any, comparison: Comparison) -> None:
    from matplotlib.ticker import EngFormatter

    _draw_bands(axis, comparison, lambda setting: setting.curve)
    axis.set_title("IQM over env steps")
    axis.set_xlabel("env steps")
    axis.set_ylabel(comparison.unit)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_profile(axis: Any, comparison: Comparison) -> None:
    _draw_bands(axis, comparison, lambda setting: setting.profile)
    axis.set_title("performance profile")
    axis.set_xlabel(f"{comparison.unit} t")
    axis.set_ylabel("fraction of runs above t")
    axis.set_ylim(-0.02, 1.02)


def _draw_bands(
    axis: Any, comparison: Comparison, band_of: Callable[[ComparedSetting], Band]
) -> None:
    for number, setting in enumerate(comparison.settings):
        band, color = band_of(setting), f"C{number % 10}"
        dots = {"marker": "."} if len(band.x) == 1 else {}
        axis.plot(band.x, band.y, color=color, linewidth=1.4, **dots)
        if band.low is not None:
            axis.fill_between(band.x, band.low, band.high, color=color, alpha=0.2, linewidth=0)


def _draw_improvements(axis: Any, comparison: Comparison) -> None:
    """Draw each pair of settings once, the better one first."""
    labels = [setting.label for setting in comparison.settings]
    pairs = [
        pair
        for pair, estimate in comparison.improvements.items()
        if estimate.value > 0.5 or (estimate.value == 0.5 and pair == tuple(sorted(pair)))
    ]
    places = list(range(len(pairs)))[::-1]
    for place, (one, other) in zip(places, pairs, strict=True):
        color = f"C{labels.index(one) % 10}"
        _draw_estimate(axis, place, comparison.improvements[one, other], color)
        text = f"{_short(one)} over\n{_short(other)}"
        axis.text(0.02, place + 0.33, text, va="bottom", fontsize=TINY)
    axis.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_yticks([])
    axis.set_xlim(0, 1.02)
    axis.set_ylim(-0.5, len(pairs) - 0.2)
    axis.set_title("probability of improvement")


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"

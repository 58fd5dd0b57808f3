"""The figure of `sampleforge compare`: intervals of the aggregate scores, the performance profile,
the IQM over env steps, and the probability that one setting is better than another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.tools.compare.comparison import (
    NEEDS_SCALE,
    TITLES,
    Band,
    ComparedSetting,
    Comparison,
)
from sampleforge.tools.compare.statistics import Statistic
from sampleforge.tools.plots.figures import GREY, TINY, WIDTH, plain_axes, save_figure

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

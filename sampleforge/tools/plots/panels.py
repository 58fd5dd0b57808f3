"""The figure of `sampleforge plot`: learning curves of one or several runs, or of settings with
several seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.tools.plots.curves import (
    Curves,
    Floats,
    Setting,
    aligned,
    finite_line,
    mean_and_interval,
    read_curves,
    settings_of,
    smoothed,
)
from sampleforge.tools.plots.figures import GREY, TINY, plain_axes, save_figure

MINUTES_FROM = 300.0
"""Length of a run in seconds from which on the time axes are in minutes."""
COLUMNS = {1: 1, 4: 2}
"""Panels beside each other, for up to so many; `MANY_COLUMNS` for more."""
MANY_COLUMNS = 3
PANEL = (3.4, 2.3)
"""Width and height of a panel in inches."""
LETTER = 0.06
"""Width of a letter of the legend in inches."""


class Panel(NamedTuple):
    """What one pair of axes shows: its title; the scalars, of which a report's first one counts;
    the scalar of the horizontal axis; a second scalar, drawn as a thin line; whether evaluations
    are drawn, as dots; whether the vertical axis begins at 0."""

    title: str
    names: tuple[str, ...]
    x: str = "env_steps"
    thin: str = ""
    dots: bool = False
    from_zero: bool = False

    def has_values(self, runs: Sequence[Curves]) -> bool:
        """Return whether there is anything to see: a value, and where the axis begins at 0, one
        that is not 0."""
        values = np.concatenate([run.series(*self.names) for run in runs])
        known = values[np.isfinite(values)]
        return bool(np.any(known != 0) if self.from_zero else len(known))

    def lines(self, setting: Setting, name: tuple[str, ...]) -> list[tuple[Floats, Floats]]:
        """Return x and y of every run of a setting that has the scalar."""
        return [finite_line(run.series(self.x), run.series(*name)) for run in setting.runs]


PANELS = (
    Panel("return, mean of 100 episodes", ("return_mean",), dots=True),
    Panel("return", ("return_mean",), "wall_s", dots=True),
    Panel("value loss", ("value_loss",)),
    Panel("policy loss", ("policy_loss",)),
    Panel("entropy", ("entropy",)),
    Panel("loss", ("td_loss",)),
    Panel("mean Q-value", ("q_mean",)),
    Panel(
        "throughput, env frames/s", ("frames_per_s_10s", "frames_per_s"), "wall_s", from_zero=True
    ),
    Panel("policy lag, versions", ("policy_lag_mean",), thin="policy_lag_max", from_zero=True),
    Panel("age of samples, env steps collected since", ("sample_age_mean",), from_zero=True),
)
"""All panels; a figure has those for which a run has values."""


class Look(NamedTuple):
    """How curves are drawn. ``smooth``: weight of the exponential moving average over reports (0:
    none), see `smoothed`; ``log_x``, ``log_y``: logarithmic axes; ``group``: draw the mean of runs
    that differ only in their seeds."""

    smooth: float = 0.0
    log_x: bool = False
    log_y: bool = False
    group: bool = True


PLAIN = Look()


def draw(
    paths: Sequence[Path],
    out: Path,
    look: Look = PLAIN,
    log: Callable[[str], None] = warnings.warn,
) -> None:
    """Draw the runs into the file ``out``; its suffix is the format.

    Runs that differ only in their seeds are drawn as their mean, with a band, the 95% bootstrap
    interval of the mean over the seeds, as far as all of them have come, and a thin line for each.
    ``log`` is told of damaged reports, which are left out. Raises ConfigError if a run has no
    report yet, or if matplotlib is missing.
    """
    runs = [_with_td_loss(curves) for path in paths for curves in read_curves(path, log)]
    if not any(panel.has_values(runs) for panel in PANELS):
        raise ConfigError(f"{paths[0]}: the run has reported no metric that could be drawn yet")
    settings = settings_of(runs, group=look.group)
    save_figure(partial(_figure, settings, look), out)


def _with_td_loss(run: Curves) -> Curves:
    """Return a run whose ``loss`` has no parts, as that of Q-learning, with it as ``td_loss``: a
    sum of parts is no quantity to compare."""
    if run.has("policy_loss"):
        return run
    reports = [{**report, "td_loss": report.get("loss")} for report in run.reports]
    return Curves(run.name, run.env, run.algo, reports, run.policy, run.config, run.given)


def _figure(settings: Sequence[Setting], look: Look, make_figure: Any) -> Any:
    runs = [run for setting in settings for run in setting.runs]
    panels = [panel for panel in PANELS if panel.has_values(runs)]
    columns = next((n for most, n in COLUMNS.items() if len(panels) <= most), MANY_COLUMNS)
    rows = max(1, math.ceil(len(panels) / columns))
    width = PANEL[0] * columns
    figure = make_figure(figsize=(width, PANEL[1] * rows + 0.5), layout="constrained")
    unit = 60.0 if max(run.reports[-1]["wall_s"] for run in runs) >= MINUTES_FROM else 1.0
    handles: list[Any] = []
    grid = figure.add_gridspec(rows, columns)
    for index, panel in enumerate(panels):
        axis = figure.add_subplot(grid[index // columns, index % columns])
        drawn = [
            _draw_setting(axis, panel, setting, f"C{number % 10}", unit, look)
            for number, setting in enumerate(settings)
        ]
        handles = handles or drawn
        dots = panel.dots and any(run.has("eval_return_mean") for run in runs)
        _finish(axis, panel, unit, look, dots=dots)
        if panel.thin and any(len(setting.runs) == 1 for setting in settings):
            axis.set_title("thin: max", loc="right", fontsize=TINY, color=GREY)
    subjects = sorted({f"{run.env}, {run.algo}" for run in runs})
    figure.suptitle("\n".join([" / ".join(subjects), *_notes(settings, look)]))
    if len(settings) > 1:
        labels = [setting.label for setting in settings]
        longest = (max(map(len, labels)) + 6) * LETTER
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=max(1, min(len(labels), int(width / longest))),
            frameon=False,
        )
    return figure


def _notes(settings: Sequence[Setting], look: Look) -> list[str]:
    """Return what the reader has to know of the lines."""
    notes = []
    counts = sorted({len(setting.runs) for setting in settings})
    if counts[-1] > 1:
        seeds = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
        notes.append(f"mean of {seeds} seeds with its 95% interval; thin lines: each seed")
    if look.smooth:
        notes.append(f"smoothed with weight {look.smooth:g}")
    return [f"({'; '.join(notes)})"] if notes else []


def _draw_setting(
    axis: Any, panel: Panel, setting: Setting, color: str, unit: float, look: Look
) -> Any:
    """Draw one setting into a panel; return the line for the legend."""
    scale = 1.0 / unit if panel.x == "wall_s" else 1.0
    raw = [(x * scale, y) for x, y in panel.lines(setting, panel.names)]
    lines = [(x, smoothed(y, look.smooth)) for x, y in raw if len(x)]
    main: dict[str, Any] = {"color": color, "linewidth": 1.5}
    if len(lines) < 2:
        for x, y in raw if look.smooth else []:
            axis.plot(x, y, color=color, linewidth=0.6, alpha=0.3)
        x, y = lines[0] if lines else (np.zeros(0), np.zeros(0))
        dot = {"marker": "."} if len(x) == 1 else {}
        (handle,) = axis.plot(x, y, **main, **dot)
    else:
        for x, y in lines:
            axis.plot(x, y, color=color, linewidth=0.6, alpha=0.4)
        x, values = aligned(lines)
        everywhere = np.isfinite(values).all(axis=0)
        mean, low, high = mean_and_interval(values[:, everywhere])
        (handle,) = axis.plot(x[everywhere], mean, **main)
        axis.fill_between(x[everywhere], low, high, color=color, alpha=0.2, linewidth=0)
    if panel.thin and len(setting.runs) == 1:
        for x, y in panel.lines(setting, (panel.thin,)):
            axis.plot(x * scale, smoothed(y, look.smooth), color=color, linewidth=0.6, alpha=0.6)
    if panel.dots:
        _draw_evaluations(axis, panel, setting, color, scale)
    return handle


def _draw_evaluations(axis: Any, panel: Panel, setting: Setting, color: str, scale: float) -> None:
    """Draw the evaluations of each run as dots: those of a single run are connected, of several
    their mean is a dashed line."""
    lines = [run.evaluations(panel.x) for run in setting.runs]
    lines = [(x * scale, y) for x, y in lines if len(x)]
    dots: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3.0}
    dots |= {"markeredgecolor": "black", "markeredgewidth": 0.4, "linewidth": 0.7}
    if len(lines) > 1:
        dots |= {"linestyle": "", "alpha": 0.5}
        x, values = aligned(lines)
        everywhere = np.isfinite(values).all(axis=0)
        mean = values[:, everywhere].mean(axis=0)
        axis.plot(x[everywhere], mean, color=color, linewidth=1.0, linestyle="--")
    for x, y in lines:
        axis.plot(x, y, **dots)


def _finish(axis: Any, panel: Panel, unit: float, look: Look, *, dots: bool) -> None:
    """Set the title, the units and the scales of a panel. ``dots``: whether it has evaluations."""
    from matplotlib.ticker import EngFormatter

    plain_axes(axis)
    axis.set_title(f"{panel.title}; dots: evaluated" if dots else panel.title)
    time = "min" if unit == 60.0 else "s"
    axis.set_xlabel(f"time, {time}" if panel.x == "wall_s" else "env steps")
    if look.log_x:
        axis.set_xscale("log")
    elif panel.x != "wall_s":
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if look.log_y:
        drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines])
        if drawn.min() > 0:
            axis.set_yscale("log")
        else:  # around zero the axis is linear
            axis.set_yscale("symlog", linthresh=max(1e-12, 0.01 * np.abs(drawn).max()))
    elif panel.from_zero:
        axis.set_ylim(bottom=0)
        if axis.get_ylim()[1] >= 1000:
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))

"""Learning curves of runs, as one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.folder.run_folder import RunFolder
from sampleforge.folder.stored_config import read_yaml
from sampleforge.reporting.metrics_file import read_metrics

MINUTES_FROM = 300.0
"""Seconds from which on time is drawn in minutes."""


class Staleness(NamedTuple):
    """How old is what a run learns from: the scalars to draw, the second one thin, and what they
    are."""

    names: tuple[str, ...]
    title: str


POLICY_LAG = Staleness(
    ("policy_lag_mean", "policy_lag_max"), "policy lag (mean; thin: max), versions"
)
SAMPLE_AGE = Staleness(("sample_age_mean",), "age of samples, env steps collected since")
"""Of runs with a replay, where no version is asked for."""


@dataclass(frozen=True)
class Curves:
    """One run: its name, what it trains, and the reports of its metrics.jsonl."""

    name: str
    subject: str
    reports: list[dict[str, Any]]

    def series(self, *names: str) -> list[float]:
        """The first of the named scalars that a report has, NaN where it has none."""
        found = []
        for report in self.reports:
            values = [report[name] for name in names if report.get(name) is not None]
            found.append(float(values[0]) if values else math.nan)
        return found

    def has(self, *names: str) -> bool:
        """Whether any report has any of the named scalars."""
        return any(report.get(name) is not None for report in self.reports for name in names)

    def evaluations(self) -> tuple[list[float], list[float], list[float]]:
        """Env steps and seconds at which weights were frozen, and their evaluated returns."""
        reports = [r for r in self.reports if r.get("eval_return_mean") is not None]
        steps = [float(report["eval_env_steps"]) for report in reports]
        known = [0.0, *self.series("env_steps")], [0.0, *self.series("wall_s")]
        times = np.interp(steps, *known).tolist()
        return steps, times, [float(report["eval_return_mean"]) for report in reports]


def read_curves(path: Path) -> Curves:
    """Raises ConfigError if ``path`` is no run folder or has no report yet."""
    folder = RunFolder.existing(path)
    config = read_yaml(folder.config_file)
    reports = read_metrics(folder.metrics_file) if folder.metrics_file.is_file() else []
    if not reports:
        raise ConfigError(f"there is nothing to draw in {path}: the run has not reported yet")
    return Curves(path.resolve().name, f"{config.get('env')}, {config.get('algo')}", reports)


def draw(paths: Sequence[Path], out: Path) -> None:
    """Draw the runs into the file ``out`` (its suffix says the format): return against env steps
    and against time, throughput, policy lag (of runs that all have a replay: age of samples).

    Raises ConfigError for a run that has nothing to draw, or if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            'plots need matplotlib, which is not installed: pip install "sampleforge[plot]"'
        ) from error
    runs = [read_curves(path) for path in paths]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    unit = _time_unit(runs)
    stale = POLICY_LAG if any(run.has(*POLICY_LAG.names) for run in runs) else SAMPLE_AGE
    lines = [
        _draw_run(axes, run, f"C{index % 10}", "-" if index < 10 else "--", unit, stale)
        for index, run in enumerate(runs)
    ]
    evaluated = any(run.evaluations()[0] for run in runs)
    dots = "; dots: evaluated" if evaluated else ""
    _finish(axes, "min" if unit == 60.0 else "s", dots, stale.title)
    subjects = sorted({run.subject for run in runs})
    figure.suptitle(" / ".join(subjects))
    if len(runs) > 1:
        names = [r.name if len(subjects) == 1 else f"{r.name} ({r.subject})" for r in runs]
        figure.legend(lines, names, loc="outside lower center", ncols=min(4, len(runs)))
    figure.savefig(out, dpi=130)


def _time_unit(runs: Sequence[Curves]) -> float:
    """Seconds per unit of the time axes."""
    longest = max(run.reports[-1]["wall_s"] for run in runs)
    return 60.0 if longest >= MINUTES_FROM else 1.0


def _draw_run(axes: Any, run: Curves, color: str, style: str, unit: float, stale: Staleness) -> Any:
    """Returns the line of training returns, for the legend."""
    steps = run.series("env_steps")
    time = [second / unit for second in run.series("wall_s")]
    mean, spread = run.series("return_mean"), run.series("return_std")
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    look = {"color": color, "linestyle": style, "linewidth": 1.5}
    dots = {"linewidth": 0.7, "marker": "o", "markersize": 4, "markeredgecolor": "black"}
    for axis, x in ((axes[0, 0], steps), (axes[0, 1], time)):
        line, *_ = axis.plot(x, mean, **look)
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    frozen_at, frozen_time, evaluated = run.evaluations()
    if evaluated:
        axes[0, 0].plot(frozen_at, evaluated, **look | dots)
        axes[0, 1].plot([second / unit for second in frozen_time], evaluated, **look | dots)
    axes[1, 0].plot(time, run.series("frames_per_s_10s", "frames_per_s"), **look)
    for name, thin in zip(stale.names, ({}, {"linewidth": 0.7, "alpha": 0.5}), strict=False):
        axes[1, 1].plot(steps, run.series(name), **look | thin)
    return line


def _finish(axes: Any, time_unit: str, evaluated: str, staleness: str) -> None:
    """Titles, units and grids. ``evaluated``: words on how evaluations are drawn."""
    from matplotlib.ticker import EngFormatter

    titles = (
        (axes[0, 0], f"return (mean and std of the last 100 episodes{evaluated})", "env steps"),
        (axes[0, 1], "return", f"time ({time_unit})"),
        (axes[1, 0], "throughput (env frames/s)", f"time ({time_unit})"),
        (axes[1, 1], staleness, "env steps"),
    )
    for axis, title, x_label in titles:
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x_label)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if x_label == "env steps":
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[1, 0].yaxis.set_major_formatter(EngFormatter(sep=""))
    if staleness == SAMPLE_AGE.title:
        axes[1, 1].yaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in axes[1]:
        axis.set_ylim(bottom=0)

"""The figure of `sampleforge plot`: learning curves of one or several runs."""

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
from sampleforge.reporting.policy_values import by_policy

MINUTES_FROM = 300.0
"""Length of a run in seconds from which on the time axes are in minutes."""


class Staleness(NamedTuple):
    """A measure of how old the experience is that a run learns from: its scalars, of which the
    second is drawn as a thin line, and the title of the axes."""

    names: tuple[str, ...]
    title: str


POLICY_LAG = Staleness(
    ("policy_lag_mean", "policy_lag_max"), "policy lag (mean; thin: max), versions"
)
SAMPLE_AGE = Staleness(("sample_age_mean",), "age of samples, env steps collected since")
"""The measure for runs with a replay, which report no policy lag."""


@dataclass(frozen=True)
class Curves:
    """One run: its name, its ``subject`` (environment and algorithm), and the reports of its
    metrics.jsonl."""

    name: str
    subject: str
    reports: list[dict[str, Any]]

    def series(self, *names: str) -> list[float]:
        """Return one number per report: the first of the named scalars that the report has, or NaN
        if it has none."""
        numbers = []
        for report in self.reports:
            values = [report[name] for name in names if report.get(name) is not None]
            numbers.append(float(values[0]) if values else math.nan)
        return numbers

    def has(self, *names: str) -> bool:
        """Return whether any report has any of the named scalars."""
        return any(report.get(name) is not None for report in self.reports for name in names)

    def evaluations(self) -> tuple[list[float], list[float], list[float]]:
        """Return, for each evaluation, the env steps and the seconds at which its weights were
        copied, and its mean return."""
        reports = [r for r in self.reports if r.get("eval_return_mean") is not None]
        steps = [float(report["eval_env_steps"]) for report in reports]
        known = [0.0, *self.series("env_steps")], [0.0, *self.series("wall_s")]
        times = np.interp(steps, *known).tolist()
        return steps, times, [float(report["eval_return_mean"]) for report in reports]


def read_curves(path: Path) -> list[Curves]:
    """Return the curves of a run folder, those of each policy if it has several. Raises ConfigError
    if ``path`` is not a run folder or has no report yet."""
    folder = RunFolder.existing(path)
    config = read_yaml(folder.config_file)
    reports = read_metrics(folder.metrics_file) if folder.metrics_file.is_file() else []
    if not reports:
        raise ConfigError(f"{path}: the run has not reported yet, so there is nothing to draw")
    run, subject = path.resolve().name, f"{config.get('env')}, {config.get('algo')}"
    policies = sorted({policy for report in reports for policy in by_policy(report)})
    if not policies:
        return [Curves(run, subject, reports)]
    of_policy = {p: [{**r, **by_policy(r).get(p, {})} for r in reports] for p in policies}
    return [Curves(f"{run} {policy}", subject, own) for policy, own in of_policy.items()]


def draw(paths: Sequence[Path], out: Path) -> None:
    """Draw the runs into the file ``out`` (its suffix is the format): return against env steps and
    against time, throughput, and policy lag (the age of samples if all runs have a replay).

    Raises ConfigError if a run has no report yet, or if matplotlib is missing.
    """
    runs = [curves for path in paths for curves in read_curves(path)]
    figure = import_figure()(figsize=(11, 7.5), layout="constrained")
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


def import_figure() -> Any:
    """Return the class of matplotlib's figures. Raises ConfigError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            'plots need matplotlib, which is not installed: pip install "sampleforge[plot]"'
        ) from error
    return Figure


def _time_unit(runs: Sequence[Curves]) -> float:
    """Return the number of seconds per unit of the time axes: 60 or 1."""
    longest = max(run.reports[-1]["wall_s"] for run in runs)
    return 60.0 if longest >= MINUTES_FROM else 1.0


def _draw_run(axes: Any, run: Curves, color: str, style: str, unit: float, stale: Staleness) -> Any:
    """Draw one run; return the line of its training returns, for the legend."""
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
    """Set titles, units and grids. ``evaluated``: the part of the title that explains how
    evaluations are drawn; ``staleness``: the title of the last axes."""
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

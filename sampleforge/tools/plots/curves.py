"""The learning curves of runs, and the figure of `sampleforge plot`: what metrics.jsonl has of each
run, and the settings that they share.

Runs whose configs differ only in their seeds are one setting, and its curve is the mean over them.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError, to_plain
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.stored_config import HEADER, SAME_SETTING, read_yaml
from sampleforge.run.folder.versions import translated
from sampleforge.run.reports.episodes import mean_returns, read_rows
from sampleforge.run.reports.metrics import by_policy, has_reports, read_metrics
from sampleforge.tools.plots.figures import GREY, TINY, plain_axes, save_figure
from sampleforge.topologies.config import ALGOS

Floats = npt.NDArray[np.float64]

MOST_NAMED = 3
"""Fields of the config that a label names; of more it says how many there are."""
MOST_POINTS = 400
"""Points of the curve of a setting."""
LARGEST = sys.float_info.max / 1e6
"""Largest value that is drawn."""
RESAMPLES = 1000
"""Bootstrap resamples of the seeds."""


@dataclass(frozen=True)
class Curves:
    """One run, or one policy of it: the ``name`` of its folder and of the policy; its ``env`` and
    ``algo``; the reports of its metrics.jsonl; the fields of its ``config`` by dotted name, and
    which of them the user has ``given``; the `mean_returns` of its ``episodes``, as far as there
    is an episodes.csv."""

    name: str
    env: str
    algo: str
    reports: Sequence[Mapping[str, Any]]
    policy: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    episodes: Mapping[str, Floats] = field(default_factory=dict)

    def series(self, *names: str) -> Floats:
        """Return one number per report: the first of the named scalars that the report has, or NaN
        if it has none."""
        numbers = []
        for report in self.reports:
            values = [report[name] for name in names if report.get(name) is not None]
            numbers.append(float(values[0]) if values else math.nan)
        return np.array(numbers)

    def has(self, *names: str) -> bool:
        """Return whether any report has any of the named scalars."""
        return any(report.get(name) is not None for report in self.reports for name in names)

    def training(self, against: str) -> tuple[Floats, Floats]:
        """Return the ``env_steps`` or the seconds (``wall_s``) of training, and the mean return of
        the last episodes there: after each episode that counts, from the first report on that has
        it (the last episode before, if none comes after it), or from the tenth episode if no report
        has; of a run without an episodes.csv, at each report."""
        if not len(self.episodes.get("return_mean", ())):
            return self.series(against), self.series("return_mean")
        known = self.series("env_steps")[np.isfinite(self.series("return_mean"))]
        x, y = self.episodes[against], self.episodes["return_mean"]
        first = 9
        if len(known):
            first = min(int(np.searchsorted(self.episodes["env_steps"], known[0])), len(x) - 1)
        return x[first:], y[first:]

    def evaluations(self, against: str) -> tuple[Floats, Floats]:
        """Return, for each evaluation, the ``env_steps`` or the seconds (``wall_s``) at which its
        weights were copied, and its mean return. A callback may report one of the two by itself."""
        steps, returns = self.series("eval_env_steps"), self.series("eval_return_mean")
        known = np.isfinite(steps) & np.isfinite(returns)
        steps, returns = steps[known], returns[known]
        if against == "env_steps":
            return steps, returns
        times = np.append(0.0, self.series("env_steps")), np.append(0.0, self.series("wall_s"))
        return np.interp(steps, *times), returns

    def is_evaluated(self) -> bool:
        """Return whether there are evaluations."""
        return len(self.evaluations("env_steps")[0]) > 0


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in their seeds. ``label``: what tells them from the others."""

    label: str
    runs: Sequence[Curves]


def read_curves(path: Path, log: Callable[[str], None] = warnings.warn) -> list[Curves]:
    """Return the curves of a run folder, those of each policy if it has several, with the scalars
    `NAMES`. ``log`` is told of damaged reports, which are left out. Raises ConfigError if ``path``
    is not a run folder or has no report yet."""
    folder = RunFolder.existing(path)
    stored = read_yaml(folder.config_file)
    file = folder.metrics_file
    reports = read_metrics(file, log, NAMES) if file.is_file() else []
    if not reports:
        raise ConfigError(f"{path}: the run has not reported yet, so there is nothing to draw")
    left_open = stored.get("left_open") or {}
    config = _settings(stored)
    header, episodes = read_rows(folder.episodes_file)
    window = int(config.get("metrics_window", 100))
    run = Curves(
        path.resolve().name,
        str(stored.get("env")),
        str(stored.get("algo")),
        reports,
        config=config,
        given=frozenset(config).difference(left_open),
        episodes=mean_returns(header, episodes, window),
    )
    parts = [by_policy(report) for report in reports]
    policies = sorted({policy for part in parts for policy in part})
    if not policies:
        return [run]
    common = [  # the run's return is that of all its policies
        {name: v for name, v in report.items() if "/" not in name and name not in RETURN}
        for report in reports
    ]
    return [
        Curves(
            f"{run.name} {policy}",
            run.env,
            run.algo,
            [{**own, **part.get(policy, {})} for own, part in zip(common, parts, strict=True)],
            policy,
            run.config,
            run.given,
            mean_returns(header, episodes, window, policy),
        )
        for policy in policies
    ]


def _has_reported(path: Path) -> bool:
    """Return whether a run has written reports. Raises ConfigError if ``path`` is none."""
    return has_reports(RunFolder.existing(path).metrics_file)


def _settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.yaml by dotted name and as this version names them, with the
    defaults of fields that the version which wrote it had not."""
    fields = _flat(translated({n: value for n, value in stored.items() if n not in HEADER}))
    own = ALGOS.get(str(stored.get("algo")))
    return {**(_flat(to_plain(own())) if own else {}), **fields}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def settings_of(runs: Sequence[Curves], *, group: bool = True) -> list[Setting]:
    """Return the settings of runs, in the order of their first ones. Without ``group`` each run is
    one of its own, labelled with its name."""
    if not group:
        return [Setting(run.name, [run]) for run in runs]
    groups = grouped(runs)
    return [Setting(_label(own, groups), own) for own in groups]


def grouped(runs: Sequence[Curves]) -> list[list[Curves]]:
    """Return the runs of each setting: those that agree in environment, algorithm, policy, and in
    every field of the config that shapes a run."""
    settings: dict[str, list[Curves]] = {}
    for run in runs:
        fields = {name: v for name, v in run.config.items() if name not in SAME_SETTING}
        key = [run.env, run.algo, run.policy, fields]
        settings.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(run)
    return list(settings.values())


def _label(own: Sequence[Curves], groups: Sequence[Sequence[Curves]]) -> str:
    """Return what tells a setting from the others, and the number of its runs, or the name of the
    only one."""
    run = own[0]
    words = differences(run, [group[0] for group in groups])
    if len(own) > 1:
        words.append(f"({len(own)} seeds)")
    else:
        folder = run.name.removesuffix(f" {run.policy}")
        words.append(f"({folder})" if words else run.name)
    return " ".join([", ".join(words[:-1]), words[-1]]).strip()


def differences(run: Curves, firsts: Sequence[Curves], most: int = MOST_NAMED) -> list[str]:
    """Return what tells the setting of a run from the others, of which ``firsts`` are one run each:
    algorithm and environment, the policy if the run has several, and up to ``most`` fields of the
    config."""
    words = [
        word
        for name in ("algo", "env", "policy")
        if len({getattr(first, name) for first in firsts}) > 1 and (word := getattr(run, name))
    ]
    alike = [first for first in firsts if (first.env, first.algo) == (run.env, run.algo)]
    differing = [
        name
        for name in dict.fromkeys(name for first in alike for name in first.config)
        if name not in SAME_SETTING
        and len({json.dumps(first.config.get(name), default=str) for first in alike}) > 1
    ]
    differing.sort(key=lambda name: not any(name in first.given for first in alike))
    for name in differing[:most]:
        words.append(f"{name.replace('_', ' ')} {in_words(run.config.get(name))}")
    if len(differing) > most:
        words.append(f"{len(differing) - most} more")
    return words


def in_words(value: Any) -> str:
    """Return the value of a setting as a label has it."""
    if value is None or isinstance(value, bool):
        return "default" if value is None else "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def smoothed(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average of ``values`` [N], in which each value counts
    ``weight`` times as much as the next one (0: ``values`` as they are). Unlike a plain one it is
    not drawn towards 0 at the beginning. NaN stays NaN and does not count."""
    out, total, count = np.full(len(values), np.nan), 0.0, 0.0
    for index, value in enumerate(values.tolist()):
        if math.isfinite(value):
            total = weight * total + (1.0 - weight) * value
            count = weight * count + (1.0 - weight)
            out[index] = total / count
    return out


def aligned(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return lines (x [N], y [N], finite and with rising x) at common points: x [G], and y [lines,
    G], interpolated linearly, NaN before the first and after the last point of a line."""
    points = np.unique(np.concatenate([x for x, _ in lines]))
    if len(points) > MOST_POINTS:
        points = points[np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]
    return points, np.array([np.interp(points, x, y, np.nan, np.nan) for x, y in lines])


def mean_and_interval(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean over the runs of ``values`` [runs, G], and the ends of its 95% interval, by
    the percentile bootstrap over the runs: it never leaves the range of the runs. Each is [G]."""
    runs = len(values)
    drawn = np.random.default_rng(0).integers(0, runs, (RESAMPLES, runs))
    drawn += runs * np.arange(RESAMPLES)[:, None]
    times = np.bincount(drawn.ravel(), minlength=RESAMPLES * runs).reshape(RESAMPLES, runs)
    ends = np.quantile(times / runs @ values, (0.025, 0.975), axis=0)
    low, high = np.clip(ends, values.min(axis=0), values.max(axis=0))  # despite rounding
    return values.mean(axis=0), low, high


def finite_line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points of a line whose x and y are finite, and far enough from the largest floats
    that an axis can be scaled. If several have the same x, the last one counts."""
    known = (np.abs(x) <= LARGEST) & (np.abs(y) <= LARGEST)
    x, y = x[known], y[known]
    last = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, np.bool_)
    return x[last], y[last]


MINUTES_FROM = 300.0
"""Length of a run in seconds from which on the time axes are in minutes."""
COLUMNS = {1: 1, 4: 2}
"""Panels beside each other, for up to so many; `MANY_COLUMNS` for more."""
MANY_COLUMNS = 3
PANEL = (3.4, 2.3)
"""Width and height of a panel in inches."""
LETTER = 0.06
"""Width of a letter of the legend in inches."""


RETURN = ("return_mean",)


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
        of_episodes = self.names == RETURN
        values = np.concatenate(
            [run.training(self.x)[1] if of_episodes else run.series(*self.names) for run in runs]
        )
        known = values[np.isfinite(values)]
        return bool(np.any(known != 0) if self.from_zero else len(known))

    def lines(
        self, setting: Setting, name: tuple[str, ...], *, reports: bool = False
    ) -> list[tuple[Floats, Floats]]:
        """Return x and y of every run of a setting that has the scalar: at each report, or the
        return, unless it is to be of ``reports`` and these have it, after each episode."""
        return [
            finite_line(*run.training(self.x))
            if name == RETURN and not (reports and run.has(*RETURN))
            else finite_line(run.series(self.x), run.series(*name))
            for run in setting.runs
        ]


PANELS = (
    Panel("return, mean of 100 episodes", RETURN, dots=True),
    Panel("return", RETURN, "wall_s", dots=True),
    Panel("value loss", ("value_loss",)),
    Panel("policy loss", ("policy_loss", "actor_loss")),
    Panel("entropy", ("entropy",)),
    Panel("temperature", ("temperature",), from_zero=True),
    Panel("loss", ("td_loss",)),
    Panel("mean Q-value", ("q_mean",)),
    Panel(
        "throughput, env frames/s", ("frames_per_s_10s", "frames_per_s"), "wall_s", from_zero=True
    ),
    Panel("policy lag, versions", ("policy_lag_mean",), thin="policy_lag_max", from_zero=True),
    Panel("age of samples, env steps collected since", ("sample_age_mean",), from_zero=True),
)
"""All panels; a figure has those for which a run has values."""
NAMES = frozenset(
    {
        "return_mean",
        "loss",
        "eval_env_steps",
        "eval_return_mean",
        *(name for panel in PANELS for name in (*panel.names, panel.x, panel.thin)),
    }
)
"""Scalars of the panels and of evaluations. A run has 50 more, which would fill the memory."""


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
    ``log`` is told of what is left out: damaged reports, and, beside others, runs without a report.
    Raises ConfigError if no run has a report yet, or if matplotlib is missing.
    """
    begun = [path for path in paths if _has_reported(path)]
    for path in paths:
        if begun and path not in begun:
            log(f"{path}: the run has not reported yet; it is left out")
    runs = [_with_td_loss(curves) for path in begun or paths for curves in read_curves(path, log)]
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
    return replace(run, reports=reports)


def _titled(panel: Panel, runs: Sequence[Curves]) -> Panel:
    """Return the panel of mean returns with the number of episodes that these runs average."""
    if panel is not PANELS[0]:
        return panel
    windows = {run.config.get("metrics_window", 100) for run in runs}
    of = f"{windows.pop():,}" if len(windows) == 1 else "the last"
    return panel._replace(title=f"return, mean of {of} episodes")


def _figure(settings: Sequence[Setting], look: Look, make_figure: Any) -> Any:
    runs = [run for setting in settings for run in setting.runs]
    panels = [_titled(panel, runs) for panel in PANELS if panel.has_values(runs)]
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
        dots = panel.dots and any(run.is_evaluated() for run in runs)
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
    found = panel.lines(setting, panel.names, reports=look.smooth > 0)
    raw = [(x * scale, y) for x, y in found]
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
        if drawn.min(initial=np.inf) > 0:
            axis.set_yscale("log")
        else:  # around zero the axis is linear
            axis.set_yscale("symlog", linthresh=max(1e-12, 0.01 * np.abs(drawn).max()))
    elif panel.from_zero:
        axis.set_ylim(bottom=0)
        if axis.get_ylim()[1] >= 1000:
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))

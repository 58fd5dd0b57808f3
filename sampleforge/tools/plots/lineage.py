"""The figure of a population: who copied whom, returns, and hyperparameters over the env steps.

One visual language holds in all axes: colour is the objective, and lines with a black edge are the
ancestry of the best member. Colours are those of matplotlib's viridis, which readers with any kind
of colour vision, and grey prints, order alike.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sampleforge.config import ConfigError
from sampleforge.populations.lineage import FILE, read
from sampleforge.run.folder.kinds import POPULATION
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.tools.plots.descent import History, Stretch
from sampleforge.tools.plots.figures import GREY, INK, PALE, TINY, WIDTH, plain_axes, save_figure
from sampleforge.tools.plots.lineage_lanes import NAMED_UP_TO, Lanes, colour_map

PITCH = {4: 0.34, 8: 0.26, 16: 0.19}
"""Inches between two lanes, up to so many members; `FINE_PITCH` for more."""
FINE_PITCH = 0.14
COLUMNS = {3: 3, 4: 2, 6: 3}
"""Axes of hyperparameters beside each other, for up to so many; `MANY_COLUMNS` for more."""
MANY_COLUMNS = 4
LOGARITHMIC_FROM = 4.0
"""Ratio of the largest to the smallest value from which on an axis of positive values is
logarithmic."""
NEAR_ONE = ("gamma", "gae_lambda", "adam_beta1", "beta1")
"""Hyperparameters that are drawn as 1 - x, because their distance from 1 is what counts."""


def draw_lineage(folder: Path, out: Path) -> None:
    """Draw the population in ``folder`` into the file ``out``, whose suffix is the format. Raises
    ConfigError if nothing can be drawn, or matplotlib is missing."""
    file, config_file = folder / FILE, folder / "config.yaml"
    events = read(file)
    if not events:
        raise ConfigError(f"{file}: no member has started yet, so there is nothing to draw")
    try:
        history = History(events)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    config = read_yaml(config_file) if config_file.is_file() else _of_population(folder)
    known = [str(config[name]) for name in ("env", "algo") if config.get(name)]
    names = known or [folder.resolve().name]
    subject = ", ".join([*names, f"{len(history.members)} members"])
    save_figure(lambda make_figure: LineagePlot(history, subject).draw(make_figure), out)


def _of_population(folder: Path) -> dict[str, Any]:
    """Return env and algorithm of a population of runs; empty if the folder is none. Raises
    ConfigError if its population.json is damaged."""
    path = folder / POPULATION
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_bytes())["settings"]
        return {"env": settings["config"]["env"], "algo": settings["algo"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


class LineagePlot:
    """Draws one `History`."""

    def __init__(self, history: History, subject: str) -> None:
        self._history = history
        self._subject = subject
        self._ancestry = history.ancestry(history.best)
        self._stretches, self._kept = history.all_stretches, history.survival()
        self._last = max(1, *(stretch.end for stretch in self._stretches))
        self._norm = self._objective_norm()

    def draw(self, make_figure: Any) -> Any:
        """Return the figure that ``make_figure`` (matplotlib's class) makes."""
        names = changing(self._history)
        columns = columns_for(len(names))
        rows = math.ceil(len(names) / columns) if names else 0
        members = len(self._history.members)
        pitch = next((p for most, p in PITCH.items() if members <= most), FINE_PITCH)
        lanes_height = max(1.1, pitch * (members + 0.4))
        heights = [lanes_height, 1.55, *[1.2] * rows]
        figure = make_figure(figsize=(WIDTH, sum(heights) + 1.05 + 0.2 * rows))
        figure.set_layout_engine("constrained", h_pad=0.05, w_pad=0.04, hspace=0.03, wspace=0.05)
        grid = figure.add_gridspec(2 + rows, max(columns, 1), height_ratios=heights)
        lanes = figure.add_subplot(grid[0, :])
        returns = figure.add_subplot(grid[1, :], sharex=lanes)
        Lanes(self._history, self._norm).draw(lanes, pitch * 72)
        self._draw_returns(returns)
        for index, name in enumerate(names):
            row, column = divmod(index, columns)
            axis = figure.add_subplot(grid[2 + row, column])
            self._draw_hyperparameter(axis, name)
            if index + columns < len(names):
                axis.tick_params(axis="x", labelbottom=False)
            else:
                axis.set_xlabel("env steps")
        self._finish(figure, lanes, returns)
        return figure

    def _draw_returns(self, axis: Any) -> None:
        for stretch in self._stretches:
            known = [s for s in stretch.scores if not math.isnan(s.objective)]
            look = (GREY, 0.9, 3) if stretch in self._kept else (PALE, 0.7, 2)
            axis.plot(
                [score.env_steps for score in known],
                [score.objective for score in known],
                color=look[0],
                linewidth=look[1],
                zorder=look[2],
                **_visible(len(known)),
            )
        xs, ys = self._ancestral_returns()
        axis.plot(
            xs,
            ys,
            color=INK,
            linewidth=1.8,
            zorder=5,
            solid_joinstyle="round",
            **_visible(len(xs)),
        )
        copies = [stretch.origin for stretch, _ in self._ancestry]
        for origin in filter(None, copies):
            if not math.isnan(origin.donor_objective):
                axis.plot(
                    [origin.env_steps],
                    [origin.donor_objective],
                    "o",
                    markersize=3.6,
                    markerfacecolor="white",
                    markeredgecolor=INK,
                    markeredgewidth=1.0,
                    zorder=6,
                )
        axis.set_ylabel("objective")
        low, high = self._objective_range()
        axis.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))

    def _ancestral_returns(self) -> tuple[list[float], list[float]]:
        """Return the points of the best member's line of descent: env steps and objective."""
        xs: list[float] = []
        ys: list[float] = []
        for stretch, end in self._ancestry:
            if stretch.origin is not None and not math.isnan(stretch.origin.donor_objective):
                xs.append(stretch.begin)
                ys.append(stretch.origin.donor_objective)
            for score in stretch.scores:
                if score.env_steps <= end and not math.isnan(score.objective):
                    xs.append(score.env_steps)
                    ys.append(score.objective)
        return xs, ys

    def _draw_hyperparameter(self, axis: Any, name: str) -> None:
        of_one = name in NEAR_ONE
        for stretch in self._stretches:
            look = (GREY, 0.9, 3) if stretch in self._kept else (PALE, 0.6, 2)
            xs, ys = trajectory(stretch, stretch.end, name, of_one=of_one)
            axis.plot(
                xs, ys, color=look[0], linewidth=look[1], zorder=look[2], drawstyle="steps-post"
            )
        xs, ys, jumps = [], [], []
        for stretch, end in self._ancestry:
            own_xs, own_ys = trajectory(stretch, end, name, of_one=of_one)
            xs += own_xs
            ys += own_ys
            jumps += [
                (x, y)
                for x, y, setting in zip(own_xs, own_ys, stretch.settings, strict=False)
                if name in setting.mutated
            ]
        axis.plot(xs, ys, color=INK, linewidth=1.6, zorder=5, drawstyle="steps-post")
        for x, y in jumps:
            axis.plot([x], [y], "D", markersize=2.6, color=INK, markeredgewidth=0, zorder=6)
        every = [
            y
            for stretch in self._stretches
            for y in trajectory(stretch, stretch.end, name, of_one=of_one)[1]
        ]
        if min(every) > 0 and max(every) / min(every) >= LOGARITHMIC_FROM:
            axis.set_yscale("log")
            if max(every) / min(every) >= 100.0:
                axis.minorticks_off()
        label = name.replace("_", " ")
        axis.set_title(f"1 − {label}" if of_one else label, loc="left", pad=3)

    # ---- scales ----

    def _objectives(self) -> list[float]:
        return [
            score.objective
            for stretch in self._stretches
            for score in stretch.scores
            if not math.isnan(score.objective)
        ]

    def _objective_range(self) -> tuple[float, float]:
        """Return the range of objectives that is drawn: without the lowest, if these are so far
        off that the others could not be told apart."""
        known = self._objectives()
        if not known:
            return 0.0, 1.0
        low, middle, high = np.quantile(known, (0.0, 0.1, 1.0)).tolist()
        if middle - low > 2.0 * (high - middle) > 0.0:
            low = middle - 0.5 * (high - middle)
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def _objective_norm(self) -> Any:
        from matplotlib.colors import Normalize

        return Normalize(*self._objective_range(), clip=True)

    def _finish(self, figure: Any, lanes: Any, returns: Any) -> None:
        """Set the scale of colours, the legend, the labels and the grids of all axes."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.ticker import EngFormatter

        mappable = ScalarMappable(self._norm, colour_map())
        bar = figure.colorbar(mappable, ax=returns, pad=0.01, fraction=0.03, aspect=14)
        bar.outline.set_visible(False)
        bar.set_label("objective (colour of the lanes)", fontsize=TINY)
        for axis in figure.axes:
            if axis is bar.ax:
                continue
            plain_axes(axis)
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.set_xlim(0, self._last)
        lanes.grid(visible=False)
        returns.set_xlabel("env steps")
        lanes.spines["left"].set_visible(False)
        lanes.set_ylabel("member")
        lanes.tick_params(axis="x", labelbottom=False)
        self._add_legends(lanes, returns)
        lanes.set_title(self._subject, loc="left", fontweight="bold", pad=18)

    def _add_legends(self, lanes: Any, returns: Any) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patheffects import Normal, Stroke

        def line(label: str, colour: Any, width: float, **more: Any) -> Line2D:
            return Line2D([], [], color=colour, linewidth=width, label=label, **more)

        colour = colour_map()(0.62)
        named = " (with its snapshot)" if len(self._history.members) <= NAMED_UP_TO else ""
        handles = [
            line("ancestry of the best", colour, 3.4),
            line("of the final population", colour, 2.4),
            line("no descendants", colour, 1.0),
            line("copy" + named, GREY, 0.9, marker=5, markersize=3.5),
            line("mutation", INK, 0.0, marker="D", markersize=2.6),
        ]
        handles[0].set_path_effects([Stroke(linewidth=4.9, foreground=INK), Normal()])
        look: Any = {"frameon": False, "fontsize": TINY, "handlelength": 1.8, "columnspacing": 1.4}
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        lanes.legend(handles=handles, ncols=5, **look, **place).set_in_layout(False)
        ring = {"marker": "o", "markersize": 3.6, "markerfacecolor": "white"}
        returns.legend(
            handles=[
                line("ancestry of the best, copied at the rings", INK, 1.8, **ring),
                line("of the final population", GREY, 0.9),
                line("no descendants", PALE, 0.8),
            ],
            ncols=3,
            **look,
            **place,
        )


def _visible(points: int) -> dict[str, Any]:
    """Return the marker of a line of so many points: one alone would be no line."""
    return {"marker": "o", "markersize": 3.0} if points == 1 else {}


def columns_for(count: int) -> int:
    """Return how many of ``count`` axes of hyperparameters stand beside each other."""
    columns = next((each for most, each in COLUMNS.items() if count <= most), MANY_COLUMNS)
    return min(columns, count)


def changing(history: History) -> list[str]:
    """Return the names of the hyperparameters that differ between members or over time."""
    values: dict[str, set[float]] = {}
    for own in history.stretches.values():
        for setting in (setting for stretch in own for setting in stretch.settings):
            for name, value in setting.values.items():
                values.setdefault(name, set()).add(value)
    return [name for name, seen in values.items() if len(seen) > 1]


def trajectory(
    stretch: Stretch, end: int, name: str, *, of_one: bool = False
) -> tuple[list[float], list[float]]:
    """Return the env steps and values of a hyperparameter along a stretch up to ``end``, to be
    drawn in steps: a point per setting, and one at the end. ``of_one``: of 1 - x."""
    settings = [s for s in stretch.settings if s.env_steps <= end and name in s.values]
    if not settings:
        return [], []
    values = [setting.values[name] for setting in settings]
    values = [1.0 - value for value in values] if of_one else values
    return [*(float(s.env_steps) for s in settings), float(end)], [*values, values[-1]]

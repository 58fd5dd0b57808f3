"""The figure of a population: who copied whom, returns, and hyperparameters over the env steps.

One visual language holds in all axes: colour is the objective, and lines with a black edge are the
ancestry of the best member. Colours are those of matplotlib's viridis, which readers with any kind
of colour vision, and grey prints, order alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.reporting.descent import Descent, History, Stretch

Points = npt.NDArray[np.float64]

WIDTH = 7.2
"""Width in inches: that of a page with two columns, or of a slide."""
PITCH = {4: 0.34, 8: 0.26, 16: 0.19}
"""Inches between two lanes, up to so many members; `FINE_PITCH` for more."""
FINE_PITCH = 0.14
PIECES = 160
"""Pieces of one colour that the length of a lane is divided into."""
COLUMNS = {3: 3, 4: 2, 6: 3}
"""Axes of hyperparameters beside each other, for up to so many; `MANY_COLUMNS` for more."""
MANY_COLUMNS = 4
LOGARITHMIC_FROM = 4.0
"""Ratio of the largest to the smallest value from which on an axis of positive values is
logarithmic."""
NAMED_UP_TO = 16
"""Members up to which the snapshots in the best one's ancestry are named."""
LONGEST_NAME = 10
"""Characters of a snapshot's name that is written."""
NEAR_ONE = ("gamma", "gae_lambda", "adam_beta1", "beta1")
"""Hyperparameters that are drawn as 1 - x, because their distance from 1 is what counts."""
INK, GREY, PALE = "#111111", "#767676", "#b9b9b9"
SMALL, TINY = 7.5, 6.5
"""Sizes of text in points."""
STYLE: Any = {
    "font.size": SMALL,
    "axes.titlesize": 8.0,
    "axes.labelsize": SMALL,
    "xtick.labelsize": TINY,
    "ytick.labelsize": TINY,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "pdf.fonttype": 42,  # text stays text in papers
    "svg.fonttype": "none",
}


def draw_lineage(history: History, subject: str, out: Path) -> None:
    """Draw a population into the file ``out``; its suffix is the format. ``subject``: the title.
    Raises ConfigError if matplotlib is missing."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            'plots need matplotlib, which is not installed: pip install "sampleforge[plot]"'
        ) from error
    with mpl.rc_context(STYLE):
        LineagePlot(history, subject).draw(Figure).savefig(out, dpi=220)


@dataclass(frozen=True)
class Line:
    """A stretch that is drawn, up to ``end``; ``kept_until``: up to where present weights descend
    from it (None: nowhere)."""

    stretch: Stretch
    end: int
    kept_until: int | None


class LineagePlot:
    """Draws one `History`."""

    def __init__(self, history: History, subject: str) -> None:
        self._history = history
        self._subject = subject
        self._best = history.best
        self._ancestry = history.ancestry(self._best)
        self._in_ancestry = {descent.stretch: descent.end for descent in self._ancestry}
        survival = history.survival()
        self._lines = [
            Line(stretch, stretch.end, survival.get(stretch))
            for member in history.members
            for stretch in history.stretches[member]
        ]
        self._last = max(1, *(line.end for line in self._lines))
        self._lanes = {member: lane for lane, member in enumerate(lane_order(history))}
        self._gap = self._room_for_curves()
        self._norm = self._objective_norm()

    def draw(self, make_figure: Any) -> Any:
        """Return the figure that ``make_figure`` (matplotlib's class) makes."""
        names = changing(self._history)
        columns = columns_for(len(names))
        rows = math.ceil(len(names) / columns) if names else 0
        pitch = next((p for most, p in PITCH.items() if len(self._lanes) <= most), FINE_PITCH)
        lanes_height = max(1.1, pitch * (len(self._lanes) + 0.4))
        heights = [lanes_height, 1.55, *[1.2] * rows]
        figure = make_figure(figsize=(WIDTH, sum(heights) + 1.05 + 0.2 * rows))
        figure.set_layout_engine("constrained", h_pad=0.05, w_pad=0.04, hspace=0.03, wspace=0.05)
        grid = figure.add_gridspec(2 + rows, max(columns, 1), height_ratios=heights)
        lanes = figure.add_subplot(grid[0, :])
        returns = figure.add_subplot(grid[1, :], sharex=lanes)
        self._draw_lanes(lanes, pitch * 72)
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

    # ---- lanes ----

    def _draw_lanes(self, axis: Any, pitch: float) -> None:
        """Draw a lane per member and a curve per copy. ``pitch``: points between two lanes."""
        from matplotlib.patches import Rectangle

        best, kept, lost = (share(pitch) for share in (_best_height, _kept_height, _lost_height))
        for line in self._lines:
            begin = self._begin(line.stretch)
            until = begin if line.kept_until is None else max(begin, line.kept_until)
            self._lane(axis, line.stretch, until, line.end, lost, 2)
            self._lane(axis, line.stretch, begin, until, kept, 4)
        for stretch, end in self._ancestry:
            begin = self._begin(stretch)
            self._lane(axis, stretch, begin, end, best, 6)
            corner = begin, self._lanes[stretch.member] - best / 2
            edge: Any = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.0, "zorder": 7}
            axis.add_patch(Rectangle(corner, max(0.0, end - begin), best, **edge))
        for line in self._lines:
            self._draw_copy(axis, line, pitch)
        if len(self._lanes) <= NAMED_UP_TO:
            self._name_snapshots(axis, best)
        self._label_lanes(axis, pitch)

    def _lane(
        self, axis: Any, stretch: Stretch, begin: float, end: float, height: float, z: int
    ) -> None:
        """Draw a stretch from ``begin`` to ``end`` in the colours of its objective; ``height`` in
        lanes."""
        if end <= begin:
            return
        from matplotlib.collections import PolyCollection

        xs = np.linspace(begin, end, max(2, 1 + round(PIECES * (end - begin) / self._last)))
        middles = (xs[:-1] + xs[1:]) / 2
        # Each piece reaches into the next one, which covers it: without that there would be seams.
        ends = np.append(middles[1:], xs[-1])
        low = self._lanes[stretch.member] - height / 2
        pieces = [
            [(a, low), (b, low), (b, low + height), (a, low + height)]
            for a, b in zip(xs[:-1].tolist(), ends.tolist(), strict=True)
        ]
        colours = self._colours(stretch, middles)
        axis.add_collection(
            PolyCollection(
                pieces, facecolors=colours, edgecolors="none", antialiaseds=False, zorder=z
            ),
            autolim=False,
        )

    def _colours(self, stretch: Stretch, xs: Points) -> Points:
        """Return the colours [N, 4] of ``stretch`` at ``xs``: of the objective there, between two
        scores in proportion, and at its beginning that of the donor, whose weights it has."""
        known = [score for score in stretch.scores if not math.isnan(score.objective)]
        at = [float(score.env_steps) for score in known]
        values = [score.objective for score in known]
        if stretch.origin is not None and not math.isnan(stretch.origin.donor_objective):
            at, values = [stretch.begin, *at], [stretch.origin.donor_objective, *values]
        if not values:
            return np.tile([0.73, 0.73, 0.73, 1.0], (len(xs), 1))
        return np.asarray(_colour_map()(self._norm(np.interp(xs, at, values))))

    def _draw_copy(self, axis: Any, line: Line, pitch: float) -> None:
        """Draw the curve from the donor's lane to where the receiver's lane goes on."""
        origin = line.stretch.origin
        if origin is None:
            return
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Curve

        best = line.stretch in self._in_ancestry
        kept = line.kept_until is not None
        y0, y1 = self._lanes[origin.donor], self._lanes[origin.receiver]
        x0, x1 = float(origin.donor_env_steps), self._begin(line.stretch)
        bend = max(x1 - x0, self._gap) * 0.55
        points = [(x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1, y1)]
        curve = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3])
        width, colour, z = (0.6, PALE, 1) if not kept else (0.9, GREY, 3)
        if best:
            width, colour, z = 1.7, INK, 8
        axis.add_patch(
            PathPatch(
                curve,
                facecolor="none",
                edgecolor=colour,
                linewidth=width,
                zorder=z,
                capstyle="round",
            )
        )
        size = (0.30 if best else 0.20) * min(pitch, 18.0)
        axis.plot(
            [x1],
            [y1],
            marker=5,
            markersize=size,
            color=colour,
            markeredgewidth=0,
            zorder=z + 2,
            clip_on=False,
        )

    def _name_snapshots(self, axis: Any, height: float) -> None:
        """Write at each copy in the best member's ancestry which snapshot was copied."""
        for stretch, _ in self._ancestry:
            origin = stretch.origin
            if origin is None or not 0 < len(origin.snapshot) <= LONGEST_NAME:
                continue
            below = self._lanes[origin.receiver] > self._lanes[origin.donor]
            axis.annotate(
                origin.snapshot,
                (origin.donor_env_steps, self._lanes[origin.donor]),
                xytext=(2.5, 3.0 if below else -3.0),
                textcoords="offset points",
                va="bottom" if below else "top",
                fontsize=5.5,
                color=INK,
                zorder=9,
            )

    def _begin(self, stretch: Stretch) -> float:
        """Return where the lane of a stretch begins: a copy's curve needs room before it."""
        return stretch.begin + (0.0 if stretch.origin is None else self._gap)

    def _room_for_curves(self) -> float:
        """Return the env steps between a copy and the beginning of the lane that it begins."""
        steps = [
            later.env_steps - earlier.env_steps
            for line in self._lines
            for earlier, later in pairwise(line.stretch.scores)
        ]
        widest = 0.022 * self._last
        return min(widest, 0.6 * float(np.median(steps))) if steps else widest

    def _label_lanes(self, axis: Any, pitch: float) -> None:
        """Write the ids of the members at the left, and their last objectives at the right."""
        size = min(SMALL, 0.72 * pitch)
        axis.set_yticks(list(self._lanes.values()), list(self._lanes), fontsize=size)
        for label, member in zip(axis.get_yticklabels(), self._lanes, strict=True):
            label.set_fontweight("bold" if member == self._best else "normal")
        for member, y in self._lanes.items():
            objective = self._history.stretches[member][-1].objective
            axis.annotate(
                "new copy" if math.isnan(objective) else number(objective),
                (1.0, y),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=size,
                color=INK if member == self._best else GREY,
                fontweight="bold" if member == self._best else "normal",
                annotation_clip=False,
            )
        axis.annotate(
            "last",
            (1.0, -0.8),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=5.5,
            color=GREY,
            annotation_clip=False,
        )
        axis.set_ylim(len(self._lanes) - 0.4, -1.0)
        axis.tick_params(axis="y", length=0)

    # ---- returns and hyperparameters ----

    def _draw_returns(self, axis: Any) -> None:
        for line in self._lines:
            known = [s for s in line.stretch.scores if not math.isnan(s.objective)]
            look = (GREY, 0.9, 3) if line.kept_until is not None else (PALE, 0.7, 2)
            axis.plot(
                [score.env_steps for score in known],
                [score.objective for score in known],
                color=look[0],
                linewidth=look[1],
                zorder=look[2],
            )
        xs, ys = self._ancestral_returns()
        axis.plot(xs, ys, color=INK, linewidth=1.8, zorder=5, solid_joinstyle="round")
        copies = [descent.stretch.origin for descent in self._ancestry]
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
        for line in self._lines:
            look = (GREY, 0.9, 3) if line.kept_until is not None else (PALE, 0.6, 2)
            xs, ys = trajectory(Descent(line.stretch, line.end), name, of_one=of_one)
            axis.plot(
                xs, ys, color=look[0], linewidth=look[1], zorder=look[2], drawstyle="steps-post"
            )
        xs, ys, jumps = [], [], []
        for descent in self._ancestry:
            own_xs, own_ys = trajectory(descent, name, of_one=of_one)
            xs += own_xs
            ys += own_ys
            jumps += [
                (x, y)
                for x, y, setting in zip(own_xs, own_ys, descent.stretch.settings, strict=False)
                if name in setting.mutated
            ]
        axis.plot(xs, ys, color=INK, linewidth=1.6, zorder=5, drawstyle="steps-post")
        for x, y in jumps:
            axis.plot([x], [y], "D", markersize=2.6, color=INK, markeredgewidth=0, zorder=6)
        every = [
            y
            for line in self._lines
            for y in trajectory(Descent(line.stretch, line.end), name, of_one=of_one)[1]
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
            for line in self._lines
            for score in line.stretch.scores
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

        mappable = ScalarMappable(self._norm, _colour_map())
        bar = figure.colorbar(mappable, ax=returns, pad=0.01, fraction=0.03, aspect=14)
        bar.outline.set_visible(False)
        bar.set_label("objective (colour of the lanes)", fontsize=TINY)
        for axis in figure.axes:
            if axis is bar.ax:
                continue
            axis.spines[["top", "right"]].set_visible(False)
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.set_xlim(0, self._last)
            if axis is not lanes:
                axis.grid(color="#e6e6e6", linewidth=0.5)
                axis.set_axisbelow(True)
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

        colour = _colour_map()(0.62)
        named = " (with its snapshot)" if len(self._lanes) <= NAMED_UP_TO else ""
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


def _best_height(pitch: float) -> float:
    """Return the height of the best member's ancestors, in lanes; ``pitch``: points of a lane."""
    return min(0.56, 9.0 / pitch)


def _kept_height(pitch: float) -> float:
    return min(0.36, 5.0 / pitch)


def _lost_height(pitch: float) -> float:
    return min(0.13, 1.7 / pitch)


def _colour_map() -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"]


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent where that is short."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.3g}"


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
    descent: Descent, name: str, *, of_one: bool = False
) -> tuple[list[float], list[float]]:
    """Return the env steps and values of a hyperparameter along a stretch, to be drawn in steps: a
    point per setting, and one at the end. ``of_one``: of 1 - x."""
    stretch, end = descent
    settings = [s for s in stretch.settings if s.env_steps <= end and name in s.values]
    if not settings:
        return [], []
    values = [setting.values[name] for setting in settings]
    values = [1.0 - value for value in values] if of_one else values
    return [*(float(s.env_steps) for s in settings), float(end)], [*values, values[-1]]


def lane_order(history: History) -> list[str]:
    """Return the members in an order with short curves between the lanes: from the order of their
    ids, each member is moved to the place that shortens the curves most, until no move does.

    Copies of which something is left count three times, those in the best member's ancestry ten
    times. The result depends on the lineage alone.
    """
    members = history.members
    index = {member: i for i, member in enumerate(members)}
    kept, best = history.survival(), {d.stretch for d in history.ancestry(history.best)}
    weights = np.zeros((len(members), len(members)))
    for stretch in (stretch for own in history.stretches.values() for stretch in own):
        if (origin := stretch.origin) is not None:
            weight = 10.0 if stretch in best else 3.0 if stretch in kept else 1.0
            weights[index[origin.donor], index[origin.receiver]] += weight
    order, length = list(range(len(members))), math.inf
    while (now := _total_length(order, weights)) < length:
        length = now
        for member in range(len(members)):
            rest = [other for other in order if other != member]
            tries = [[*rest[:at], member, *rest[at:]] for at in range(len(members))]
            lengths = [_total_length(one, weights) for one in tries]
            shortest = int(np.argmin(lengths))
            if lengths[shortest] < _total_length(order, weights):
                order = tries[shortest]
    return [members[i] for i in order]


def _total_length(order: Sequence[int], weights: Points) -> float:
    """Return the weighted sum of the lanes that the copies cross."""
    lanes = np.empty(len(order))
    lanes[list(order)] = np.arange(len(order))
    return float((weights * np.abs(lanes[:, None] - lanes[None, :])).sum())

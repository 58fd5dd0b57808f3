"""The lanes of the figure of a population: one for each member, with curves from donors to the
members that copied them, and their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.tools.plots.descent import History, Stretch
from sampleforge.tools.plots.figures import GREY, INK, PALE, SMALL

Points = npt.NDArray[np.float64]

PIECES = 160
"""Pieces of one colour that the length of a lane is divided into."""
NAMED_UP_TO = 16
"""Members up to which the snapshots in the best one's ancestry are named."""
LONGEST_NAME = 10
"""Characters of a snapshot's name that is written."""


class Lanes:
    """The lanes of the members of ``history``. ``norm``: the scale of the colours of objectives,
    matplotlib's Normalize."""

    def __init__(self, history: History, norm: Any) -> None:
        self._history = history
        self._best = history.best
        self._ancestry = history.ancestry(self._best)
        self._in_ancestry = {stretch for stretch, _ in self._ancestry}
        self._kept_until = history.survival()
        self._last = max(1, *(stretch.end for stretch in history.all_stretches))
        self._lanes = {member: lane for lane, member in enumerate(lane_order(history))}
        self._gap = self._room_for_curves()
        self._norm = norm

    def draw(self, axis: Any, pitch: float) -> None:
        """Draw a lane per member and a curve per copy. ``pitch``: points between two lanes."""
        from matplotlib.patches import Rectangle

        best, kept, lost = (share(pitch) for share in (_best_height, _kept_height, _lost_height))
        for stretch in self._history.all_stretches:
            begin = self._begin(stretch)
            until = max(begin, self._kept_until.get(stretch, begin))
            self._lane(axis, stretch, until, stretch.end, lost, 2)
            self._lane(axis, stretch, begin, until, kept, 4)
        for stretch, end in self._ancestry:
            begin = self._begin(stretch)
            self._lane(axis, stretch, begin, end, best, 6)
            corner = begin, self._lanes[stretch.member] - best / 2
            edge: Any = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.0, "zorder": 7}
            axis.add_patch(Rectangle(corner, max(0.0, end - begin), best, **edge))
        for stretch in self._history.all_stretches:
            self._draw_copy(axis, stretch, pitch)
        if len(self._lanes) <= NAMED_UP_TO:
            self._name_snapshots(axis)
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
        return np.asarray(colour_map()(self._norm(np.interp(xs, at, values))))

    def _draw_copy(self, axis: Any, stretch: Stretch, pitch: float) -> None:
        """Draw the curve from the donor's lane to where the receiver's lane goes on."""
        origin = stretch.origin
        if origin is None:
            return
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Curve

        best, kept = stretch in self._in_ancestry, stretch in self._kept_until
        y0, y1 = self._lanes[origin.donor], self._lanes[origin.receiver]
        x0, x1 = float(origin.donor_env_steps), self._begin(stretch)
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

    def _name_snapshots(self, axis: Any) -> None:
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
            for stretch in self._history.all_stretches
            for earlier, later in pairwise(stretch.scores)
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
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over late curves
                annotation_clip=False,
                zorder=10,
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


def _best_height(pitch: float) -> float:
    """Return the height of the best member's ancestors, in lanes; ``pitch``: points of a lane."""
    return min(0.56, 9.0 / pitch)


def _kept_height(pitch: float) -> float:
    return min(0.36, 5.0 / pitch)


def _lost_height(pitch: float) -> float:
    return min(0.13, 1.7 / pitch)


def colour_map() -> Any:
    """Return the colours of objectives."""
    from matplotlib import colormaps

    return colormaps["viridis"]


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent where that is short."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.3g}"


def lane_order(history: History) -> list[str]:
    """Return the members in an order with short curves between the lanes: from the order of their
    ids, each member is moved to the place that shortens the curves most, until no move does.

    Copies of which something is left count three times, those in the best member's ancestry ten
    times. The result depends on the lineage alone.
    """
    members = history.members
    index = {member: i for i, member in enumerate(members)}
    kept, best = history.survival(), {each for each, _ in history.ancestry(history.best)}
    weights = np.zeros((len(members), len(members)))
    for stretch in history.all_stretches:
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

"""The figure of a tournament or of self-play: who beats whom, and the ratings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.config import ConfigError
from sampleforge.populations.league import LEARNER
from sampleforge.populations.ratings import Results
from sampleforge.run.folder.stored_config import read_yaml
from sampleforge.run.screen.progress import short
from sampleforge.tools.plots.figures import GRID, INK, WIDTH, save_figure

Floats = npt.NDArray[np.float64]

CELL = 0.62
"""Largest width of one cell in inches."""
RATINGS = 1.5
"""Least width of the ratings in inches."""
LETTER = 0.062
"""Width of a letter of the labels in inches."""
LABELS_UP_TO = 32
"""Players whose names are all written; of more, some are left out."""
EMPTY = "#f2f2f2"


@dataclass(frozen=True)
class WinRates:
    """What is drawn, of N players in the order of the rows.

    ``rates`` [N, N]: points per game of the row's player against the column's, NaN where they have
    not played; ``games`` [N, N]; ``elo`` and ``errors`` [N]: ratings and their standard
    errors. ``what``: the players, in a few words.
    """

    title: str
    players: Sequence[str]
    rates: Floats
    games: Floats
    elo: Floats
    errors: Floats
    what: str = "players"

    def by_rating(self) -> WinRates:
        """Return the same with the highest rating first."""
        return self.ordered(np.argsort(-self.elo, kind="stable").tolist())

    def ordered(self, order: Sequence[int]) -> WinRates:
        """Return the same with the players in another order, given by their present places."""
        return WinRates(
            self.title,
            [self.players[i] for i in order],
            self.rates[np.ix_(order, order)],
            self.games[np.ix_(order, order)],
            self.elo[list(order)],
            self.errors[list(order)],
            self.what,
        )


def read_win_rates(path: Path, title: str) -> WinRates:
    """Return what is drawn of a self_play.json, the oldest snapshot first. Raises ConfigError if
    the file is damaged."""
    try:
        plain = json.loads(path.read_bytes())
        results = Results.from_state(plain["results"])
        taken = {str(each["number"]): int(each["env_steps"]) for each in plain["snapshots"]}
        names = [LEARNER if p == LEARNER else short(taken[p]) for p in results.players]
        elo, errors = np.array(plain["elo"], float), np.array(plain["elo_error"], float)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error
    drawn = WinRates(
        title, names, results.win_rates, results.games, elo, errors, what="snapshot at env steps"
    )
    return drawn.ordered(sorted(range(len(names)), key=lambda i: names[i] == LEARNER))


def draw_self_play(folder: Path, out: Path) -> None:
    """Draw the self-play of the run in ``folder`` into the file ``out``, as `draw_win_rates`
    does."""
    config = read_yaml(folder / "config.yaml")
    title = f"{config.get('env')}, {config.get('algo')}: the policy against its snapshots"
    draw_win_rates(read_win_rates(folder / "self_play.json", title), out)


def draw_win_rates(drawn: WinRates, out: Path) -> None:
    """Draw the matrix of win rates and, beside its rows, the ratings with 95% intervals, into the
    file ``out``; its suffix is the format. Raises ConfigError if matplotlib is missing."""
    save_figure(lambda figure: _figure(figure, drawn), out)


def _figure(make_figure: Any, drawn: WinRates) -> Any:
    """Return the figure. Sizes are in inches, because the rows of the matrix and those of the
    ratings must have the same height."""
    count = len(drawn.players)
    names = max(map(len, drawn.players)) * LETTER
    left, right, gap, top = names + 0.2, 0.55, 0.25, 0.35
    cell = min(CELL, (WIDTH - left - gap - right - RATINGS) / count)
    size = cell * count
    bottom = 0.85 + (names if _is_upright(drawn, cell) else 0.15)
    height = top + size + bottom
    figure = make_figure(figsize=(WIDTH, height))

    def axes(x: float, y: float, width: float, tall: float, **more: Any) -> Any:
        return figure.add_axes((x / WIDTH, y / height, width / WIDTH, tall / height), **more)

    matrix = axes(left, bottom, size, size)
    image = _draw_matrix(matrix, drawn, cell)
    x = left + size + gap
    _draw_ratings(axes(x, bottom, WIDTH - right - x, size, sharey=matrix), drawn)
    bar = figure.colorbar(image, cax=axes(left, 0.38, size, 0.1), orientation="horizontal")
    bar.set_ticks([0.0, 0.25, 0.5, 0.75, 1.0], labels=["0%", "25%", "50%", "75%", "100%"])
    bar.outline.set_visible(False)
    bar.set_label("win rate of the row's player; a draw is half a win")
    matrix.set_title(drawn.title, loc="left", fontweight="bold")
    return figure


def _is_upright(drawn: WinRates, cell: float) -> bool:
    """Return whether the names below the columns are written upright."""
    return max(map(len, drawn.players)) * LETTER > 0.95 * cell


def _draw_matrix(axis: Any, drawn: WinRates, cell: float) -> Any:
    """Draw the matrix; ``cell``: width of a cell in inches. Return the image."""
    from matplotlib import colormaps

    colours = colormaps["RdBu"].with_extremes(bad=EMPTY)
    count = len(drawn.players)
    rates = np.ma.masked_invalid(drawn.rates)
    image = axis.imshow(rates, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
    axis.set_xticks(np.arange(-0.5, count), minor=True)
    axis.set_yticks(np.arange(-0.5, count), minor=True)
    axis.grid(which="minor", color="white", linewidth=min(1.0, 4.0 * cell))
    axis.tick_params(which="both", length=0)
    axis.spines[:].set_visible(False)
    shown = range(0, count, math.ceil(count / LABELS_UP_TO))
    size = min(7.5, max(4.5, 60.0 * cell))
    names = [drawn.players[i] for i in shown]
    axis.set_yticks(list(shown), names, fontsize=size)
    rotation = 90 if _is_upright(drawn, cell) else 0
    axis.set_xticks(list(shown), names, fontsize=size, rotation=rotation)
    axis.set_xlabel(f"opponent: {drawn.what}" if drawn.what != "players" else "opponent")
    if cell >= 0.24:
        for i, j in np.argwhere(drawn.games > 0).tolist():
            _write(axis, i, j, drawn, cell)
    return image


def _write(axis: Any, i: int, j: int, drawn: WinRates, cell: float) -> None:
    """Write the win rate into a cell, and below it the number of games."""
    rate = drawn.rates[i, j]
    colour = "white" if abs(rate - 0.5) > 0.3 else INK
    with_games = cell >= 0.42
    axis.text(
        j,
        i - (0.1 if with_games else 0.0),
        f"{100 * rate:.0f}%" if with_games else f"{100 * rate:.0f}",
        ha="center",
        va="center",
        color=colour,
        fontsize=min(8.0, 17.0 * cell),
    )
    if with_games:
        axis.text(
            j,
            i + 0.24,
            f"{drawn.games[i, j]:,.0f}",
            ha="center",
            va="center",
            color=colour,
            fontsize=min(5.5, 11.0 * cell),
            alpha=0.8,
        )


def _draw_ratings(axis: Any, drawn: WinRates) -> None:
    """Draw the ratings with 95% intervals, beside the rows of the matrix."""
    rows = np.arange(len(drawn.players))
    axis.barh(
        rows,
        2 * 1.96 * drawn.errors,
        left=drawn.elo - 1.96 * drawn.errors,
        height=0.42,
        color="#9ecae1",
        zorder=2,
    )
    axis.plot(drawn.elo, rows, "o", color="#08306b", markersize=3.2, zorder=3)
    if len(rows) <= LABELS_UP_TO:
        for row, elo in zip(rows.tolist(), drawn.elo.tolist(), strict=True):
            axis.annotate(
                f"{elo:,.0f}",
                (1.0, row),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
    axis.set_xlabel("Elo (95% interval)")
    axis.margins(x=0.08)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color=GRID, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", which="both", length=0, labelleft=False)

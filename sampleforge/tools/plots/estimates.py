"""The figure of `sampleforge estimate`: each estimate with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sampleforge.tools.plots.figures import GREY, INK, SMALL, WIDTH, save_figure


def draw_estimates(result: Mapping[str, Any], names: Mapping[str, str], out: Path) -> None:
    """Draw the estimates of ``result``, as `sampleforge.tools.estimate.estimation.estimate` returns
    them, and the mean return of the episodes themselves, into the file ``out``; its suffix is the
    format. ``names``: name of an estimate -> its label. Raises ConfigError if matplotlib is
    missing."""
    save_figure(lambda figure: _figure(figure, result, names), out)


def _figure(make_figure: Any, result: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    drawn = [name for name in names if name in result][::-1]
    figure = make_figure(figsize=(WIDTH, 1.1 + 0.42 * len(drawn)), layout="constrained")
    axis = figure.subplots()
    for row, name in enumerate(drawn):
        _draw(axis, row, result[name])
    axis.axvline(result["behaviour_return"], color=GREY, linewidth=1.0, linestyle="--", zorder=1)
    axis.set_yticks(range(len(drawn)), [names[name] for name in drawn])
    axis.set_ylim(-0.5, len(drawn) - 0.3)
    axis.set_xlabel(
        f"return, with {100 * result['level']:g}% intervals (dashed: mean return of the episodes "
        "themselves)"
    )
    axis.set_title(
        f"{result['episodes']:,} episodes, which count as "
        f"{result['episodes_effective']:,.1f} of the policy's own",
        loc="left",
    )
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _draw(axis: Any, row: int, estimate: Mapping[str, float]) -> None:
    """Draw one estimate as a point on the line of its interval, with its value above."""
    value = estimate["value"]
    axis.plot([estimate["low"], estimate["high"]], [row, row], color=INK, linewidth=1.5, zorder=2)
    axis.plot([value], [row], "o", color=INK, markersize=4.5, zorder=3)
    axis.annotate(
        f"{value:,.4g}",
        (value, row),
        (0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=SMALL,
    )

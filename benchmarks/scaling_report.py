"""The tables and figures of scaling.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import describe, table

Rows = Sequence[tuple[float, ...]]


def heading() -> str:
    return describe("torch", "gymnasium")


def actors(found: Mapping[str, Rows], out: Path | None) -> None:
    for kind, rows in found.items():
        print(f"\nOver actors, {kind} inference:\n")
        header = ["actors", "env steps/s", "efficiency", "cores used"]
        print(table(header, [[f"{a}", f"{r:.1f}", f"{e:.1%}", f"{c:.2f}"] for a, r, e, c in rows]))
    if out is None:
        return
    figure, axes = new_figure("actors")
    for kind, rows in found.items():
        axes.plot([r[0] for r in rows], [r[1] for r in rows], "o-", label=f"{kind} inference")
    first = next(iter(found.values()))
    linear = [first[0][1] * row[0] for row in first]
    axes.plot([row[0] for row in first], linear, "k--", linewidth=1, label="linear")
    log_axes(axes, [row[0] for row in first])
    axes.set_title("Actors whose envs sleep 20 ms per step, on 2 cores", fontsize=10)
    axes.set_ylabel("env steps/s")
    save(figure, axes, out / "scaling-actors.png")


def overlap(rows: Rows, out: Path | None) -> None:
    print("\nDouble buffering, ms per split step:\n")
    names = ["env / inference", "env time", "inference time", "1 split", "2 splits", "hidden"]
    print(table(names, [[f"{r[0]:g}", *(f"{x:.2f}" for x in r[1:5]), f"{r[5]:.1%}"] for r in rows]))
    if out is None:
        return
    figure, axes = new_figure("env time / inference time")
    ratios = [row[0] for row in rows]
    axes.plot(ratios, [row[3] for row in rows], "o-", label="1 split")
    axes.plot(ratios, [row[4] for row in rows], "o-", label="2 splits")
    slower = [max(row[1:3]) for row in rows]
    axes.plot(ratios, slower, "k--", linewidth=1, label="max(env time, inference time)")
    for row in rows:
        where = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(f"{row[5]:.0%}\nhidden", (row[0], row[4]), (0, -30), **where)
    log_axes(axes, ratios)
    axes.set_yticks([10, 20, 40], ["10", "20", "40"])
    axes.set_yticks([], minor=True)
    axes.set_ylim(bottom=0.7 * min(slower))
    axes.set_title("Double buffering: 1 actor, 1 policy worker", fontsize=10)
    axes.set_ylabel("ms per split step")
    save(figure, axes, out / "scaling-overlap.png")


def env_rows(rows: Rows, out: Path | None) -> None:
    print("\nOver env rows of one actor, us per env step:\n")
    header = ["rows", "bookkeeping", "env to slot", "own, both", "own x rows", "forward pass"]
    cells = [
        [f"{n}", f"{b:.3f}", f"{d:.3f}", f"{own:.3f}", f"{own * n:.1f}", f"{f:.3f}"]
        for n, b, d, own, f in rows
    ]
    print(table(header, cells))
    if out is None:
        return
    figure, axes = new_figure("env rows of the actor")
    counts = [row[0] for row in rows]
    axes.plot(counts, [row[3] for row in rows], "o-", label="own: bookkeeping and env to slot")
    axes.plot(counts, [row[1] for row in rows], "o-", label="bookkeeping alone")
    axes.plot(counts, [rows[0][3] / n for n in counts], "k--", linewidth=1, label="1 / rows")
    axes.plot([32], [3.0], "rv", label="target at 32 rows: below 3 us")
    log_axes(axes, counts)
    axes.set_title("What an env step costs beside the env and the forward pass", fontsize=10)
    axes.set_ylabel("us per env step")
    save(figure, axes, out / "scaling-rows.png")


def memory(found: Mapping[str, tuple[float, float]]) -> None:
    print("\nPrivate memory of an actor (4 actors of 16 rows), MB:\n")
    cells = [
        [case, f"{uss:.1f}", f"{slots:.1f}", f"{uss - slots:.1f}"]
        for case, (uss, slots) in found.items()
    ]
    print(table(["model", "USS", "slots that no other has looked into", "beside them"], cells))


def new_figure(x_label: str) -> tuple[Any, Any]:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    return figure, axes


def log_axes(axes: Any, ticks: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])


def save(figure: Any, axes: Any, file: Path) -> None:
    """``axes``: one or several, of which the first has the legend."""
    several = axes if hasattr(axes, "__len__") else [axes]
    for one in several:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    several[0].legend(fontsize=9)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    print(f"\ndrawn: {file}")

"""The tables and figures of ranks.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from machine import describe, table
from scaling_report import log_axes, new_figure, save

if TYPE_CHECKING:
    from ranks import Measured
    from ranks_learning import TrainingResult


def heading() -> str:
    return describe("torch", "gymnasium")


def scaling(found: Mapping[str, Mapping[int, Measured]], step_ms: float, out: Path | None) -> None:
    one = found["waiting"][1].rate
    print(f"\nOver ranks, {step_ms:g} ms per env step:\n")
    rows, parts = [], []
    for way, runs in found.items():
        for n, m in runs.items():
            cells = [f"{m.rate:.0f}", f"{m.rate / one:.2f}", f"{m.rate / one / n:.1%}"]
            cells.append(f"{m.lost:.1%}")
            rows.append([way, str(n), *cells])
            parts.append([way, str(n), *_ms(m)])
    print(table(["", "ranks", "env steps/s", "speed-up", "efficiency", "lost"], rows))
    print("\nMilliseconds per update of a rank:\n")
    print(table(["", "ranks", *_parts(found["waiting"][1])], parts))
    if out is not None:
        _draw_scaling(found, f"sleep {step_ms:g} ms per step, 4 of them per rank", out)


def _draw_scaling(found: Mapping[str, Mapping[int, Measured]], what: str, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    one, counts = found["waiting"][1].rate, list(found["waiting"])
    for way, runs in found.items():
        rates = [m.rate for m in runs.values()]
        left.plot(counts, rates, "o-", label=way)
        shares = [100 * m.rate / one / n for n, m in runs.items()]
        right.plot(counts, shares, "o-", label=way)
    left.plot(counts, [one * n for n in counts], "k--", linewidth=1, label="linear")
    right.plot([8], [90], "rv", label="target at 8 ranks: 90%", markersize=8)
    log_axes(left, counts)
    right.set_xscale("log", base=2)
    right.set_xticks(counts, [str(n) for n in counts])
    right.set_ylim(0, 110)
    left.set_ylabel("env steps/s, with learning")
    right.set_ylabel("efficiency against one rank, %")
    for axes in (left, right):
        axes.set_xlabel("ranks")
    figure.suptitle(f"DD-PPO on 2 cores, environments that {what}", fontsize=10)
    right.legend(fontsize=9, loc="lower left")
    save(figure, (left, right), out / "ranks-scaling.png")


def _parts(one: Measured) -> list[str]:
    return ["in all", "rollout", *one.stages_ms, "waiting", "processor"]


def _ms(m: Measured) -> list[str]:
    parts = (m.update_ms, m.rollout_ms, *m.stages_ms.values(), m.wait_ms, m.cpu_ms)
    return [f"{part:.1f}" for part in parts]


def stragglers(found: Mapping[str, Mapping[str, Measured]], what: str, out: Path | None) -> None:
    """Each run is compared with what its own step times and updates would make possible: between
    runs a shared machine changes by more than pre-emption would have left to recover."""
    print("\n4 ranks; possible: what they could make of it at these speeds if none ever waited;")
    print("recovered: of what waiting costs, and of what it costs beyond even ranks:\n")
    header = ["", "", "env steps/s", "possible", "lost", "recovered", "beyond even", "cut short"]
    rows = []
    even = found["even"]["waiting"].lost
    for case, runs in found.items():
        lost = runs["waiting"].lost
        for way, m in runs.items():
            recovered = ["", ""]
            if case != "even" and way != "waiting":
                recovered = [f"{(lost - m.lost) / part:.0%}" for part in (lost, lost - even)]
            cells = [f"{m.rate:.0f}", f"{m.possible:.0f}", f"{m.lost:.1%}"]
            rows.append([case, way, *cells, *recovered, f"{m.cut:.2f}"])
    print(table(header, rows))
    if out is None:
        return
    figure, axes = new_figure("")
    figure.set_size_inches(9, 4.8)
    ways = list(next(iter(found.values())))
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        at = np.arange(len(found)) + (i - (len(ways) - 1) / 2) * width
        shares = [100 * m[way].rate / m[way].possible for m in found.values()]
        bars = axes.bar(at, shares, width * 0.95, label=way)
        labels = [f"{share:.0f}%" for share in shares]
        axes.bar_label(bars, labels, padding=-14, color="white", fontsize=8)
    axes.axhline(100, color="k", linestyle="--", linewidth=1, label="if none ever waited")
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylim(0, 140)
    axes.set_title(f"4 ranks on 2 cores, environments that {what}", fontsize=10)
    axes.set_ylabel("env steps/s, % of what the ranks could sample")
    save(figure, axes, out / "ranks-stragglers.png")


def learning(found: Mapping[str, Mapping[str, list[TrainingResult]]], out: Path | None) -> None:
    """Print, and draw, the training results by case and way."""
    print("\nCartPole-v1 on 4 ranks, after as many env steps:\n")
    header = ["", "", "seed", "env steps", "training s", "return", "evaluated", "rank 0's share"]
    rows = []
    for case, ways in found.items():
        for way, runs in ways.items():
            for seed, run in enumerate(runs, 1):
                steps, wall, ret = run.curve[-1]
                cells = [f"{steps:.0f}", f"{wall:.1f}", f"{ret:.0f}", f"{run.evaluated:.0f}"]
                rows.append([case, way, str(seed), *cells, f"{run.share:.0%}"])
    print(table(header, rows))
    if out is not None:
        _draw_learning(found, out)


def _draw_learning(found: Mapping[str, Mapping[str, list[TrainingResult]]], out: Path) -> None:
    """A row for each case: over env steps, and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), 2, sharey=True, squeeze=False)
    for (case, ways), line in zip(found.items(), grid, strict=True):
        for column, (axes, x_label) in enumerate(zip(line, ("env steps", "seconds"), strict=True)):
            for color, (way, runs) in zip(("C0", "C1", "C2"), ways.items(), strict=True):
                for seed, run in enumerate(runs):
                    x, y = [point[column] for point in run.curve], [p[2] for p in run.curve]
                    label = None if seed else way
                    axes.plot(x, y, color=color, linewidth=1.2, alpha=0.8, label=label)
            axes.set_xlabel(x_label)
            axes.set_title(case, fontsize=10)
        line[0].set_ylabel("return, mean of the last 100 episodes")
    seeds = len(next(iter(next(iter(found.values())).values())))
    figure.suptitle(f"CartPole-v1 on 4 ranks: as many env steps, {seeds} seeds each", fontsize=10)
    save(figure, grid.ravel(), out / "ranks-learning.png")

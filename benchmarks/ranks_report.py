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
    from ranks_learning import Learned


def heading() -> str:
    return describe("torch", "gymnasium")


def scaling(
    found: Mapping[float, Mapping[int, Measured]], step_ms: float, out: Path | None
) -> None:
    one = found[1.0][1].rate
    print(f"\nOver ranks, {step_ms:g} ms per env step:\n")
    rows, parts = [], []
    for fraction, runs in found.items():
        for n, m in runs.items():
            cells = [f"{m.rate:.0f}", f"{m.rate / one:.2f}", f"{m.rate / one / n:.1%}"]
            cells.append(f"{m.lost:.1%}")
            rows.append([_name(fraction), str(n), *cells])
            parts.append([_name(fraction), str(n), *_ms(m)])
    print(table(["", "ranks", "env steps/s", "speed-up", "efficiency", "lost"], rows))
    print("\nMilliseconds per update of a rank:\n")
    print(table(["", "ranks", *_parts(found[1.0][1])], parts))
    if out is not None:
        _draw_scaling(found, f"sleep {step_ms:g} ms per step, 4 of them per rank", out)


def _draw_scaling(found: Mapping[float, Mapping[int, Measured]], what: str, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    one, counts = found[1.0][1].rate, list(found[1.0])
    for fraction, runs in found.items():
        rates = [m.rate for m in runs.values()]
        left.plot(counts, rates, "o-", label=_name(fraction))
        shares = [100 * m.rate / one / n for n, m in runs.items()]
        right.plot(counts, shares, "o-", label=_name(fraction))
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


def stragglers(found: Mapping[str, Mapping[float, Measured]], what: str, out: Path | None) -> None:
    """Each run is compared with what its own step times and updates would make possible: between
    runs a shared machine changes by more than pre-emption would have left to recover."""
    print("\n4 ranks; possible: what they could make of it at these speeds if none ever waited:\n")
    header = ["", "sync fraction", "env steps/s", "possible", "lost", "recovered", "cut short"]
    rows = []
    for case, runs in found.items():
        lost = runs[1.0].lost
        for fraction, m in runs.items():
            recovered = ""
            if fraction < 1 and lost > 0.05:
                recovered = f"{1 - m.lost / lost:.0%}"
            cells = [f"{m.rate:.0f}", f"{m.possible:.0f}", f"{m.lost:.1%}"]
            rows.append([case, f"{fraction:g}", *cells, recovered, f"{m.cut:.2f}"])
    print(table(header, rows))
    if out is None:
        return
    figure, axes = new_figure("")
    fractions = list(next(iter(found.values())))
    width = 0.8 / len(fractions)
    for i, fraction in enumerate(fractions):
        at = np.arange(len(found)) + (i - (len(fractions) - 1) / 2) * width
        runs = [m[fraction] for m in found.values()]
        shares = [100 * m.rate / m.possible for m in runs]
        bars = axes.bar(at, shares, width * 0.95, label=_name(fraction))
        labels = [f"{m.rate:.0f}/s" for m in runs]
        axes.bar_label(bars, labels, padding=-14, color="white", fontsize=8)
    axes.axhline(100, color="k", linestyle="--", linewidth=1, label="if none ever waited")
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylim(0, 140)
    axes.set_title(f"4 ranks on 2 cores, environments that {what}", fontsize=10)
    axes.set_ylabel("env steps/s, % of what the ranks could sample")
    save(figure, axes, out / "ranks-stragglers.png")


def learning(found: Mapping[float, list[Learned]], out: Path | None) -> None:
    print("\nCartPole-v1, one of 4 ranks 4x slower, after as many env steps:\n")
    header = ["", "seed", "env steps", "training s", "return", "evaluated", "rank 0's experience"]
    rows = []
    for fraction, runs in found.items():
        for seed, run in enumerate(runs, 1):
            steps, wall, ret = run.curve[-1]
            cells = [f"{steps:.0f}", f"{wall:.1f}", f"{ret:.0f}", f"{run.evaluated:.0f}"]
            rows.append([_name(fraction), str(seed), *cells, f"{run.share:.0%}"])
    print(table(header, rows))
    if out is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for column, (axis, x_label) in enumerate(zip(axes, ("env steps", "seconds"), strict=True)):
        for color, (fraction, runs) in zip(("C0", "C1"), found.items(), strict=True):
            for seed, run in enumerate(runs):
                x, y = [point[column] for point in run.curve], [point[2] for point in run.curve]
                label = None if seed else _name(fraction)
                axis.plot(x, y, color=color, linewidth=1.2, alpha=0.8, label=label)
        axis.set_xlabel(x_label)
    axes[0].set_ylabel("return, mean of the last 100 episodes")
    seeds = len(next(iter(found.values())))
    title = f"CartPole-v1, one of 4 ranks 4x slower: as many env steps, {seeds} seeds each"
    figure.suptitle(title, fontsize=10)
    save(figure, axes, out / "ranks-learning.png")


def _name(fraction: float) -> str:
    if fraction == 1:
        return "waiting"
    return f"pre-empting, --sync-fraction {fraction:g}"

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


def scaling(found: Mapping[int, Measured], step_ms: float, out: Path | None) -> None:
    one = found[1].rate
    efficiency = {ranks: m.rate / one / ranks for ranks, m in found.items()}
    print(f"\nOver ranks, {step_ms:g} ms per env step:\n")
    rows = [
        [str(n), f"{m.rate:.0f}", f"{m.rate / one:.2f}", f"{efficiency[n]:.1%}"]
        for n, m in found.items()
    ]
    print(table(["ranks", "env steps/s", "speed-up", "efficiency"], rows))
    print("\nmilliseconds per update of a rank:\n")
    print(table(["ranks", *_parts(found[1])], [[str(n), *_ms(m)] for n, m in found.items()]))
    if out is None:
        return
    figure, axes = new_figure("ranks")
    counts = list(found)
    axes.plot(counts, [m.rate for m in found.values()], "o-", label="DD-PPO, gradients averaged")
    axes.plot(counts, [one * n for n in counts], "k--", linewidth=1, label="linear")
    for n, m in found.items():
        where = {"textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(f"{efficiency[n]:.0%}", (n, m.rate), (0, -18), **where)
    log_axes(axes, counts)
    axes.set_ylim(bottom=0.6 * one)
    axes.set_title(f"Ranks whose envs sleep {step_ms:g} ms per step, on 2 cores", fontsize=10)
    axes.set_ylabel("env steps/s, with learning")
    save(figure, axes, out / "ranks-scaling.png")


def _parts(one: Measured) -> list[str]:
    return ["in all", "rollout", *one.stages_ms, "waiting", "processor"]


def _ms(m: Measured) -> list[str]:
    parts = (m.update_ms, m.rollout_ms, *m.stages_ms.values(), m.wait_ms, m.cpu_ms)
    return [f"{part:.1f}" for part in parts]


def stragglers(
    found: Mapping[str, Mapping[float, Measured]],
    speeds: Mapping[str, tuple[Mapping[str, float], float]],
    out: Path | None,
) -> None:
    """``speeds``: what each case could sample if none ever waited, against the first one."""
    even = next(iter(found.values()))[1.0].rate
    print("\nEnv steps/s of 4 ranks; recovered: of what waiting loses against the possible:\n")
    header = ["", "sync fraction", "env steps/s", "possible", "lost", "recovered", "cut short"]
    rows = []
    for case, runs in found.items():
        possible, waiting = even * speeds[case][1], runs[1.0].rate
        for fraction, m in runs.items():
            recovered = ""
            if fraction < 1 and waiting < possible:
                recovered = f"{(m.rate - waiting) / (possible - waiting):.0%}"
            cells = [f"{m.rate:.0f}", f"{possible:.0f}", f"{1 - m.rate / possible:.0%}"]
            rows.append([case, f"{fraction:g}", *cells, recovered, f"{m.cut:.2f}"])
    print(table(header, rows))
    if out is None:
        return
    figure, axes = new_figure("")
    fractions, width = list(found["even"]), 0.8 / len(found["even"])
    for i, fraction in enumerate(fractions):
        at = np.arange(len(found)) + (i - (len(fractions) - 1) / 2) * width
        rates = [m[fraction].rate for m in found.values()]
        bars = axes.bar(at, rates, width * 0.95, label=_name(fraction))
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    for i, case in enumerate(found):
        label = None if i else "possible: what they could sample if none ever waited"
        axes.hlines(even * speeds[case][1], i - 0.45, i + 0.45, "k", "--", linewidth=1, label=label)
    axes.set_xticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylim(0, 1.45 * even)
    axes.set_title("4 ranks whose envs sleep 4 ms per step on average, on 2 cores", fontsize=10)
    axes.set_ylabel("env steps/s, with learning")
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

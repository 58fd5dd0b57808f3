"""The trials of a sweep as a table and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from sampleforge.tools.sweep.spec import SweepSpec
from sampleforge.tools.sweep.study import TrialResult

SHOWN = 15
"""Trials in the table that changes."""


def news(trials: Sequence[TrialResult], spec: SweepSpec, told: dict[int, str]) -> list[str]:
    """Return a line for each trial whose state has changed since it was ``told``."""
    lines = []
    for trial in trials:
        if told.get(trial.number) == trial.state or trial.state == "waiting":
            continue
        told[trial.number] = trial.state
        result = "" if trial.value is None else f"  {spec.method.metric} {trial.value:,.2f}"
        lines.append(f"trial {trial.number:04d} {trial.state:<8}{result}  {settings(trial)}")
    return lines


def settings(trial: TrialResult) -> str:
    """Return the searched settings of a trial as text."""
    return "  ".join(f"{name} {shown(value)}" for name, value in trial.params.items())


def shown(value: Any) -> str:
    """Return a value with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(trials: Sequence[TrialResult], spec: SweepSpec, most: int | None) -> Table:
    """Return the trials as a table: the running ones, and the others with the best first.
    ``most``: number of rows (None: all)."""
    sign = -1.0 if spec.method.direction == "maximize" else 1.0

    def order(trial: TrialResult) -> tuple[int, float]:
        rank = {"running": 0, "waiting": 1, "complete": 2, "pruned": 3, "failed": 4}
        return rank[trial.state], 0.0 if trial.value is None else sign * trial.value

    result = Table(box=box.SIMPLE_HEAD)
    for name in ("trial", "state", "done", spec.method.metric, *spec.search):
        result.add_column(name, justify="left" if name == "state" else "right")
    for trial in sorted(trials, key=order)[:most]:
        value = "-" if trial.value is None else f"{trial.value:,.2f}"
        done = f"{trial.fraction:.0%}" if trial.state in ("running", "waiting", "complete") else ""
        params = (shown(trial.params.get(name, "-")) for name in spec.search)
        result.add_row(f"{trial.number:04d}", trial.state, done, value, *params)
    return result

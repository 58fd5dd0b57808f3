"""The command `sampleforge sweep SPEC.yaml`: search settings by many training runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.jobs import JobsFlags, JobsScreen, run_jobs
from sampleforge.run.folder.atomic_file import to_json

if TYPE_CHECKING:
    from rich.table import Table

    from sampleforge.tools.sweep.spec import SweepSpec
    from sampleforge.tools.sweep.study import TrialResult
    from sampleforge.tools.sweep.sweep import Sweep

SHOWN = 15
"""Trials in the table that changes."""


@dataclass(frozen=True, kw_only=True)
class SweepFlags(JobsFlags):
    spec: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC.yaml")]
    """File with the settings of all trials and the ranges to search."""
    folder: str
    """Folder of the sweep. The same command resumes the sweep in it."""


def run(args: Sequence[str]) -> int:
    """Search, print the trials, and the result as one JSON object in the last line. Raises
    ConfigError."""
    text = (
        "Search settings by many training runs. docs/sweeps.md explains the file; for example "
        "sampleforge sweep sweep.yaml --folder sweeps/lr --jobs 4"
    )
    flags = parse(SweepFlags, args, "sampleforge sweep", text)
    from sampleforge.tools.sweep.spec import read_spec

    spec, folder = read_spec(Path(flags.spec)), Path(flags.folder)
    from sampleforge.env.scratch import make_cwd_importable
    from sampleforge.populations.folder import PopulationFolder
    from sampleforge.tools.jobs.launcher import open_jobs
    from sampleforge.tools.sweep.sweep import TRIALS_ON_SLURM, Sweep, SweepFailed

    make_cwd_importable()
    with PopulationFolder(folder) as locked:
        jobs = open_jobs(locked.path, flags, most=TRIALS_ON_SLURM)
        try:
            sweep = Sweep(spec, locked.path, jobs)
        except BaseException:
            jobs.close()
            raise
        told: dict[int, str] = {}
        screen = JobsScreen(
            lambda: table(sweep.trials(), spec, SHOWN), lambda: news(sweep.trials(), spec, told)
        )
        screen.say(f"Sweep of {spec.num_trials} trials, {jobs.limit} at a time, in {folder}")
        try:
            code = run_jobs(sweep, jobs, screen, leave=flags.leave_jobs)
        except SweepFailed as error:
            print(f"sampleforge: error: {error}", file=sys.stderr)
            return 1
        return report(sweep, spec, screen, code)


def report(sweep: Sweep, spec: SweepSpec, screen: JobsScreen, code: int) -> int:
    """Print all trials and the result; return the exit code: 1 if no trial has succeeded."""
    summary = sweep.summary()
    screen.console.print(table(sweep.trials(), spec, None))
    if code:
        screen.say("Interrupted; the same command resumes the sweep")
    if sweep.error is not None:
        screen.say(f"The last failure: {sweep.error}")
    print(to_json(summary), flush=True)
    return code or (0 if summary["best"] is not None else 1)


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
    from rich import box
    from rich.table import Table

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

"""The command `sampleforge sweep SPEC.yaml`: search settings by many training runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.cli.words import KEY_VALUES, Scalar
from sampleforge.runtime.files import to_json
from sampleforge.tools.jobs.jobs import JobsConfig

if TYPE_CHECKING:
    from sampleforge.tools.jobs.jobs import JobsScreen
    from sampleforge.tools.sweep.spec import SweepSpec
    from sampleforge.tools.sweep.sweep import Sweep


@dataclass(frozen=True)
class JobsFlags(JobsConfig):
    """The flags of jobs; the values of --slurm are typed as KEY=VALUE."""

    slurm: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """With --launcher slurm: options of sbatch, such as partition=gpu cpus_per_task=8
    gpus_per_node=1 time=600 (minutes)."""


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
    from sampleforge.env.user_code import make_cwd_importable
    from sampleforge.tools.jobs.jobs import JobsScreen
    from sampleforge.tools.jobs.loop import launched_in, run_jobs
    from sampleforge.tools.sweep.study import SHOWN, news, table
    from sampleforge.tools.sweep.sweep import TRIALS_ON_SLURM, Sweep

    make_cwd_importable()
    make = partial(Sweep, spec)
    with launched_in(folder, "sweep", flags, TRIALS_ON_SLURM, make) as (sweep, jobs):
        told: dict[int, str] = {}
        screen = JobsScreen(
            lambda: table(sweep.trials(), spec, SHOWN), lambda: news(sweep.trials(), spec, told)
        )
        screen.say(f"Sweep of {spec.num_trials} trials, {jobs.limit} at a time, in {folder}")
        code = run_jobs(sweep, jobs, screen, leave=flags.leave_jobs)
        return report(sweep, spec, screen, code)


def report(sweep: Sweep, spec: SweepSpec, screen: JobsScreen, code: int) -> int:
    """Print all trials and the result; return the exit code: 1 if no trial has succeeded."""
    from sampleforge.tools.sweep.study import table

    summary = sweep.summary()
    screen.console.print(table(sweep.trials(), spec, None))
    if code:
        screen.say("Interrupted; the same command resumes the sweep")
    if sweep.error is not None:
        screen.say(f"The last failure: {sweep.error}")
    print(to_json(summary), flush=True)
    return code or (0 if summary["best"] is not None else 1)

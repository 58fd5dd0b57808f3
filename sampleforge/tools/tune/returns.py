"""The search of `sampleforge tune --for return`: a sweep around the defaults within a budget of
minutes, whose trials are training runs of equal length."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from sampleforge.config import ConfigError, from_plain
from sampleforge.env.probe import EnvProbeError, probe
from sampleforge.env.scratch import make_cwd_importable
from sampleforge.presets import preset_values
from sampleforge.tools.jobs.config import JobsConfig
from sampleforge.tools.jobs.jobs import Jobs, LaunchFailed
from sampleforge.tools.jobs.loop import launched_in, run_jobs
from sampleforge.tools.jobs.screen import JobsScreen
from sampleforge.tools.sweep.search_space import SearchSpace, search_space
from sampleforge.tools.sweep.spec import SweepSpec, read_spec
from sampleforge.tools.sweep.sweep import Sweep
from sampleforge.tools.sweep.table import SHOWN, news, shown, table
from sampleforge.tools.tune.config import TuneConfig
from sampleforge.tools.tune.written import write_tuned
from sampleforge.topologies.config_classes import config_class

MINUTES = 30.0
"""Default budget."""
PARTS = 20
"""Trials without pruning that the budget is divided into."""
SHORTEST_S = 15.0
"""Least default length of a trial in seconds: a start takes some of them."""
START_S = 60.0
"""Seconds after the budget within which the last trials must end."""
MOST_TRIALS = 10_000
"""More trials than any budget has."""


def tune_returns(asked: TuneConfig, out: Path) -> int:
    """Search, print the trials, write ``out``, and print the command that trains with it; return
    the exit code. After Ctrl-C the best trial so far counts. Raises ConfigError."""
    minutes = asked.minutes or MINUTES
    seconds = trial_seconds(asked, minutes)
    space = _space(asked)
    name = f"{asked.file_stem}-tune-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(asked.folder or Path("sweeps") / name)
    with tempfile.TemporaryDirectory() as scratch:
        spec = _spec(asked, space, seconds, Path(scratch) / "sweep.yaml")

        def make(folder: Path, jobs: Jobs) -> Sweep:
            sweep = Sweep(spec, folder, jobs)
            sweep.propose(space.defaults)
            return sweep

        config = JobsConfig(jobs=asked.jobs or 1)
        with launched_in(folder, config, 1, make) as (sweep, jobs):
            budget = Budget(sweep, 60.0 * minutes, seconds)
            told: dict[int, str] = {}
            screen = JobsScreen(
                lambda: _panel(budget, spec), lambda: news(sweep.trials(), spec, told)
            )
            screen.say(
                f"Searching {', '.join(space.ranges)} for {minutes:g} min: trials of {seconds:g} "
                f"s, {jobs.limit} at a time, the defaults first, in {folder}"
            )
            try:
                code = run_jobs(budget, jobs, screen, leave=False)
            except LaunchFailed as error:
                screen.say(f"nothing found: {error}")
                return 1
            failed = _report(asked, sweep, space, screen, out, seconds)
            return code or failed


def trial_seconds(asked: TuneConfig, minutes: float) -> float:
    """Return the seconds of training of a trial. Raises ConfigError if the budget has no room for
    two of them."""
    jobs = asked.jobs or 1
    seconds = asked.seconds_per_trial or max(SHORTEST_S, round(60.0 * minutes * jobs / PARTS))
    if 2 * seconds > 60.0 * minutes * jobs:
        raise ConfigError(
            f"--minutes {minutes:g}: there is no time for two trials of {seconds:g} s, of which "
            "the first has the defaults; raise it, or give shorter trials with --seconds-per-trial"
        )
    return seconds


def _space(asked: TuneConfig) -> SearchSpace:
    """Return the settings to search. Raises ConfigError if the environment cannot be made."""
    values = preset_values(asked.algo, asked.preset) if asked.preset else {}
    config = from_plain(config_class(asked.algo), {**values, "env": asked.env})
    make_cwd_importable()
    try:
        spec = probe(config)
    except EnvProbeError as error:
        raise ConfigError(f"The environment {error.what}:\n{error}") from error
    return search_space(config, spec)


def _spec(asked: TuneConfig, space: SearchSpace, seconds: float, path: Path) -> SweepSpec:
    """Return the sweep, after writing it to ``path`` as a file for `sampleforge sweep`."""
    content: dict[str, Any] = {"algo": asked.algo}
    content |= {"preset": asked.preset} if asked.preset else {}
    content |= {
        "trials": MOST_TRIALS,
        "pruner": "median",
        "config": {"env": asked.env, "train_for_seconds": seconds},
        "search": space.ranges,
    }
    head = f"# Written by `sampleforge tune {asked.env} {asked.algo} --for return`.\n"
    path.write_text(head + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return read_spec(path)


class Budget:
    """A sweep that ends when its time is over: no trial begins that could not end within the
    ``total`` seconds, each taking ``each``, and what runs `START_S` after them is ended."""

    def __init__(
        self,
        sweep: Sweep,
        total: float,
        each: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sweep = sweep
        self.total = total
        self._each = each
        self._clock = clock
        self._started = clock()

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._started

    @property
    def done(self) -> bool:
        return self.sweep.done or self.passed > self.total + START_S

    def step(self) -> None:
        """Step the sweep. Raises LaunchFailed if no trial runs at all."""
        if self.passed + self._each > self.total:
            self.sweep.finish()
        self.sweep.step()


def _panel(budget: Budget, spec: SweepSpec) -> RenderableType:
    """Return what the terminal shows meanwhile: the time that has passed, and the trials."""
    done = min(budget.passed, budget.total)
    text = Text(f"{done / 60:.1f} of {budget.total / 60:g} min")
    bar = ProgressBar(total=budget.total, completed=done, width=40)
    return Group(text, bar, table(budget.sweep.trials(), spec, SHOWN))


def _report(
    asked: TuneConfig,
    sweep: Sweep,
    space: SearchSpace,
    screen: JobsScreen,
    out: Path,
    seconds: float,
) -> int:
    """Print the trials, and write the best; return 1 if there is none."""
    summary = sweep.summary()
    trials = sweep.trials()
    screen.console.print(table(trials, sweep.spec, None))
    best = summary["best"]
    if best is None:
        reason = sweep.error or "no trial has come to its end"
        screen.say(f"nothing found: {reason}")
        return 1
    first = next((trial for trial in trials if trial.number == 0), None)
    beside = ""
    if first is not None and first.state == "complete" and first.value is not None:
        beside = f"; the defaults (trial 0000): {first.value:,.5g}"
    screen.say(f"best return {best['value']:,.5g} (trial {best['trial']:04d}){beside}")
    params = "  ".join(f"{name} {shown(value)}" for name, value in best["params"].items())
    screen.say(params)
    note = (
        f"Each trial is one run of {seconds:g} s with a seed of its own, so that some of the "
        "difference is luck: train both with several seeds, and see `sampleforge compare`."
    )
    screen.say(note)
    head = (
        f"# Best mean return of the last episodes, {best['value']:,.5g}, after {seconds:g} s of "
        f"training, of {summary['complete']} complete trials by\n"
        f"# `sampleforge tune {asked.env} {asked.algo} --for return`{beside}.\n"
    )
    write_tuned(screen.console, asked, out, head, best["params"])
    return 0

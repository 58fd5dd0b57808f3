"""The command `sampleforge pbt ALGO`: train a population of runs that copy and mutate."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sampleforge.cli.flags import parse
from sampleforge.cli.sweep import JobsFlags
from sampleforge.cli.train import parse_config
from sampleforge.cli.words import KEY_VALUES, Scalar
from sampleforge.config import ConfigError, check_range
from sampleforge.runtime.files import to_json
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.config_classes import algorithm_names
from sampleforge.topologies.population_config import PbtRulesConfig, ranges

if TYPE_CHECKING:
    from sampleforge.tools.jobs.jobs import JobsScreen
    from sampleforge.tools.pbt.across_runs import Population
    from sampleforge.tools.pbt.settings import PopulationSettings

EXAMPLE = (
    "sampleforge pbt --population 4 --folder populations/cartpole "
    "--pbt-period 20000 --pbt-start 20000 appo --env CartPole-v1 --train-for-env-steps 200000"
)


@dataclass(frozen=True, kw_only=True)
class PbtFlags(JobsFlags, PbtRulesConfig):
    population: int
    """Number of members."""
    folder: str
    """Folder of the population. The same command resumes the population in it; with a larger
    --population more members join."""
    pbt_bounds: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """Limits of perturbed hyperparameters, as in learning-rate=1e-5..1e-2."""
    pbt_initial: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """Ranges from which the members draw their first hyperparameters, as in learning-rate=1e-6..1:
    log-uniformly, one member from each of as many equal parts as there are members."""
    max_member_restarts: int = 5
    """Times in a row that a member may die without progress before it is given up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "population", low=1)
        check_range(self, "max_member_restarts", low=0)
        if self.pbt_reference is not None and self.pbt_reference >= self.population:
            raise ConfigError(
                f"--pbt-reference {self.pbt_reference}: the members are numbered from 0 to "
                f"{self.population - 1} (--population {self.population})"
            )


def run(args: Sequence[str]) -> int:
    """Train, print the members, and the result as one JSON object in the last line. Raises
    ConfigError."""
    own, algo, rest = split(args)
    text = (
        "Train a population of runs, which copy the best and mutate their hyperparameters. The "
        f"algorithm and its flags, as for train, come last: {EXAMPLE}"
    )
    flags = parse(PbtFlags, own, "sampleforge pbt", text)
    if algo is None:
        raise ConfigError(
            f"There is no algorithm ({', '.join(algorithm_names())}) after the flags: {EXAMPLE}"
        )
    # A member resumes from a checkpoint at every change and turn: it would lose its replay.
    config = parse_config(algo, rest, "pbt ...", {"save_replay": True})
    from sampleforge.env.user_code import make_cwd_importable
    from sampleforge.tools.jobs.jobs import JobsScreen
    from sampleforge.tools.jobs.loop import launched_in, run_jobs
    from sampleforge.tools.pbt.across_runs import Population
    from sampleforge.tools.pbt.table import news, table

    make_cwd_importable()
    settings = population_settings(flags, config)
    folder, make = Path(flags.folder), partial(Population, settings)
    with launched_in(folder, "population of runs", flags, flags.population, make) as (
        population,
        jobs,
    ):
        told: dict[str, str] = {}
        screen = JobsScreen(lambda: table(population.members()), lambda: news(population, told))
        at_a_time = min(jobs.limit, flags.population)
        screen.say(f"Population of {flags.population} members, {at_a_time} at a time, in {folder}")
        for text in settings.warnings:
            screen.say(text)
        code = run_jobs(population, jobs, screen, leave=flags.leave_jobs)
        return report(population, folder, screen, code)


def split(args: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the flags of the population, the algorithm, and the flags of the algorithm."""
    for index, word in enumerate(args):
        if word in algorithm_names() and args[index - 1 : index] != ["--folder"]:
            return list(args[:index]), word, list(args[index + 1 :])
    return list(args), None, []


def population_settings(flags: PbtFlags, config: AnyConfig) -> PopulationSettings:
    """Return the settings of the population. Raises ConfigError for flags that do not fit."""
    import numpy as np

    from sampleforge.populations.rules import (
        changes_shaping,
        check_own,
        rules_of,
        spec_of_members,
    )
    from sampleforge.tools.pbt.member_change import MemberRules
    from sampleforge.tools.pbt.settings import PopulationSettings, told_of

    check_own(config)
    if getattr(config, "lr_schedule", "constant") is None:  # see usual_lr_schedule
        config = dataclasses.replace(config, lr_schedule="constant")  # type: ignore[arg-type]
    ids = [str(index) for index in range(flags.population)]
    here, shapes = flags.launcher == "local", changes_shaping(flags, config)
    # Jobs elsewhere may have other devices and simulators: nothing is told of theirs.
    told = here and bool(flags.pbt_perturb or flags.pbt_bounds or flags.pbt_initial)
    spec = spec_of_members(config, here=here) if shapes or told else None
    shaping = spec.shaping_hyperparameters if spec is not None and shapes else {}
    rules = rules_of(config, flags, ids, shaping, np.random.default_rng(0))
    return PopulationSettings(
        flags.population,
        config,
        MemberRules(
            period=flags.pbt_period,
            start=flags.pbt_start,
            exploit=rules.exploit,
            explore=rules.explore,
            turns=False,
            seed=secrets.randbelow(2**31) if config.seed is None else config.seed,
        ),
        ranges("pbt_initial", flags.pbt_initial),
        flags.max_member_restarts,
        () if spec is None or not told else told_of(config, flags, flags.population, spec),
    )


def report(population: Population, folder: Path, screen: JobsScreen, code: int) -> int:
    """Print the members and the result; return the exit code: 1 if no member has finished."""
    from sampleforge.tools.pbt.table import table

    summary = population.summary()
    screen.console.print(table(population.members()))
    for text in population.take_problems():
        screen.say(text)
    if summary["schedule"] is not None:
        schedule = folder / summary["schedule"]
        screen.say(f"One run replays the best member's hyperparameters: --schedule {schedule}")
    if code:
        screen.say("Interrupted; the same command resumes the population")
    print(to_json(summary), flush=True)
    return code or (0 if summary["finished"] else 1)

"""The command `sampleforge pbt ALGO`: train a population of runs that copy and mutate."""

from __future__ import annotations

import dataclasses
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sampleforge.cli.flags import parse
from sampleforge.cli.jobs import JobsFlags, JobsScreen, run_jobs
from sampleforge.cli.key_values import KEY_VALUES, Scalar
from sampleforge.cli.train import parse_config
from sampleforge.config import ConfigError, check_range
from sampleforge.folder.atomic_file import to_json
from sampleforge.populations.exploit import EXPLOIT_RULES, Variant
from sampleforge.populations.explore import PERTURBED, Bounds, explore_rule
from sampleforge.topologies.config import ALGOS, AnyConfig

if TYPE_CHECKING:
    from rich.table import Table

    from sampleforge.populations.across_runs import MemberStatus, Population, PopulationSettings

SHOWN = 5
"""Hyperparameters in the table of the members."""
EXAMPLE = (
    "sampleforge pbt --population 4 --folder populations/cartpole "
    "--initial learning-rate=1e-5..1e-2 appo --env CartPole-v1 --train-for-env-steps 200000"
)


@dataclass(frozen=True, kw_only=True)
class PbtFlags(JobsFlags):
    population: int
    """Number of members."""
    folder: str
    """Folder of the population. The same command resumes the population in it; with a larger
    --population more members join."""
    period: int | None = None
    """Env steps of a member between two rounds (default: a twentieth of --train-for-env-steps)."""
    start: int = 0
    """Env steps of a member before its first change."""
    variant: Variant = "sample-factory"
    """Which members copy and mutate: the rules of Sample Factory 2, of DexPBT, or truncation
    selection."""
    perturb: tuple[str, ...] = ()
    """Hyperparameters to perturb (default: learning rate, exploration, clips, discounts ...)."""
    initial: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """Ranges of the first values, as in learning-rate=1e-6..1: log-uniform, and each member draws
    from a part of its own (default: all begin with the values of the config)."""
    bounds: Annotated[dict[str, Scalar], KEY_VALUES] = dataclasses.field(default_factory=dict)
    """Limits of perturbed hyperparameters, as in learning-rate=1e-5..1e-2."""
    min_episodes: int = 10
    """Episodes of its own that a member needs to be compared with others."""
    max_member_restarts: int = 5
    """Times in a row that a member may die without progress before it is given up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "population period min_episodes", low=1)
        check_range(self, "start max_member_restarts", low=0)


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
        raise ConfigError(f"There is no algorithm ({', '.join(ALGOS)}) after the flags: {EXAMPLE}")
    config = parse_config(algo, rest, "pbt ...")
    from sampleforge.env.scratch import make_cwd_importable
    from sampleforge.populations.across_runs import Population, PopulationFailed
    from sampleforge.populations.folder import PopulationFolder
    from sampleforge.populations.jobs import open_jobs

    make_cwd_importable()
    settings = population_settings(flags, config)
    with PopulationFolder(Path(flags.folder)) as locked:
        jobs = open_jobs(locked.path, flags, most=flags.population)
        try:
            population = Population(settings, locked.path, jobs)
        except BaseException:
            jobs.close()
            raise
        told: dict[str, str] = {}
        screen = JobsScreen(lambda: table(population.members()), lambda: news(population, told))
        at_a_time = min(jobs.limit, flags.population)
        screen.say(
            f"Population of {flags.population} members, {at_a_time} at a time, in {flags.folder}"
        )
        try:
            code = run_jobs(population, jobs, screen, leave=flags.leave_jobs)
        except PopulationFailed as error:
            print(f"sampleforge: error: {error}", file=sys.stderr)
            return 1
        return report(population, screen, code)


def split(args: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the flags of the population, the algorithm, and the flags of the algorithm."""
    for index, word in enumerate(args):
        if word in ALGOS and args[index - 1 : index] != ["--folder"]:
            return list(args[:index]), word, list(args[index + 1 :])
    return list(args), None, []


def population_settings(flags: PbtFlags, config: AnyConfig) -> PopulationSettings:
    """Return the settings of the population. Raises ConfigError for flags that do not fit."""
    from sampleforge.populations.across_runs import PopulationSettings
    from sampleforge.populations.member import Rules, first_hyperparameters

    period, steps = flags.period, config.train_for_env_steps
    if period is None:
        if steps is None:
            raise ConfigError("give --period: without --train-for-env-steps there is no default")
        period = max(1, steps // 20)
    if getattr(config, "pbt", False):
        raise ConfigError("--pbt: trains a population in one run; leave it out")
    known = first_hyperparameters(config)
    initial = parsed_ranges("--initial", flags.initial)
    if zero := [name for name, (low, _) in initial.items() if low <= 0]:
        raise ConfigError(f"--initial {zero[0]}: LOW must be above 0: the logarithm is drawn")
    names = [parsed_name(word) for word in flags.perturb]
    try:
        explore = explore_rule(
            flags.variant, known, names, parsed_ranges("--bounds", flags.bounds), initial
        )
    except ValueError as error:
        raise ConfigError(f"--perturb, --initial, --bounds: {error}") from error
    rules = Rules(
        period=period,
        start=flags.start,
        min_episodes=flags.min_episodes,
        exploit=EXPLOIT_RULES[flags.variant],
        explore=explore,
        turns=False,
        seed=secrets.randbelow(2**31) if config.seed is None else config.seed,
    )
    return PopulationSettings(flags.population, config, rules, initial, flags.max_member_restarts)


def parsed_ranges(flag: str, words: Mapping[str, Scalar]) -> dict[str, Bounds]:
    """Return the ranges of NAME=LOW..HIGH, by the name of the hyperparameter. Raises ConfigError
    for other words."""
    ranges = {}
    for key, word in words.items():
        low, _, high = str(word).partition("..")
        try:
            parsed = float(low), float(high)
        except ValueError:
            parsed = (1.0, 0.0)
        if not parsed[0] <= parsed[1] < float("inf"):
            raise ConfigError(f"{flag} {key}={word}: write NAME=LOW..HIGH, such as gamma=0.9..0.99")
        ranges[parsed_name(key)] = parsed
    return ranges


def parsed_name(word: str) -> str:
    """Return the name of a hyperparameter that may be typed like a flag."""
    return word.removeprefix("--").replace("-", "_")


def report(population: Population, screen: JobsScreen, code: int) -> int:
    """Print the members and the result; return the exit code: 1 if no member has finished."""
    summary = population.summary()
    screen.console.print(table(population.members()))
    for text in population.take_problems():
        screen.say(text)
    if code:
        screen.say("Interrupted; the same command resumes the population")
    print(to_json(summary), flush=True)
    return code or (0 if summary["finished"] else 1)


def news(population: Population, told: dict[str, str]) -> list[str]:
    """Return the problems since the last call, and a line for each member whose state or round has
    changed since it was ``told``."""
    lines = population.take_problems()
    for member in population.members():
        state = member.published
        line = f"member {member.id} {member.state}"
        if state is not None:
            objective = "-" if state.objective is None else f"{state.objective:,.2f}"
            line += f"  round {state.round}  {state.env_steps:,} env steps  return {objective}"
        if told.get(member.id) != line:
            told[member.id] = line
            lines.append(line)
    return lines


def table(members: Sequence[MemberStatus]) -> Table:
    """Return the members as a table."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD)
    names = sorted(_varied(members), key=_importance)[:SHOWN]
    for name in ("member", "state", "round", "env steps", "return", *names):
        result.add_column(name, justify="left" if name == "state" else "right")
    for member in members:
        state = member.published
        if state is None:
            result.add_row(member.id, member.state)
            continue
        objective = "-" if state.objective is None else f"{state.objective:,.2f}"
        values = (state.hyperparameters.get(name) for name in names)
        result.add_row(
            *(member.id, member.state, str(state.round), f"{state.env_steps:,}", objective),
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values),
        )
    return result


def _importance(name: str) -> tuple[int, str]:
    """Return a sort key by which the hyperparameters that most depends on are first."""
    return (PERTURBED.index(name) if name in PERTURBED else len(PERTURBED)), name


def _varied(members: Sequence[MemberStatus]) -> set[str]:
    """Return the hyperparameters that differ between the members."""
    known = [member.published.hyperparameters for member in members if member.published]
    return {name for values in known for name in values if values[name] != known[0].get(name)}

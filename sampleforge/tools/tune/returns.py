"""The search of `sampleforge tune --for return`: a sweep of ranges and choices around the defaults
for the environment, within a budget of minutes, whose trials are training runs of equal length.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from sampleforge.config import ConfigError, from_plain, typed
from sampleforge.env.probe import EnvProbeError, probe
from sampleforge.env.user_code import make_cwd_importable
from sampleforge.spec import EnvSpec
from sampleforge.tools.jobs.jobs import JobsConfig, JobsScreen, LaunchFailed
from sampleforge.tools.jobs.loop import launched_in, run_jobs
from sampleforge.tools.sweep.spec import SweepSpec, read_spec
from sampleforge.tools.sweep.study import SHOWN, news, shown, table
from sampleforge.tools.sweep.sweep import Sweep
from sampleforge.tools.tune.config import TuneConfig, write_tuned
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.config_classes import config_class
from sampleforge.topologies.registry import pairing
from sampleforge.topologies.sampler_plan import run_device

Range = dict[str, Any]
"""The values of a setting as the YAML file of a sweep has them: low, high and log, or choices."""
RATE_FACTOR = 10.0
"""The learning rate is searched from a tenth of its default to ten times as much."""


def search_space(config: AnyConfig, spec: EnvSpec) -> tuple[dict[str, Range], dict[str, Any]]:
    """Return the settings to search for ``config``, as the user has given it, in the environment
    with this ``spec``: setting -> its values, and setting -> the value that a run has without a
    flag, which is among them. Choices that a run would refuse are left out. Raises ConfigError for
    a config that cannot run, or whose algorithm does not learn from an environment."""
    if pairing(config).topology.sampler is None:
        raise ConfigError(
            f"--for return: {config.algo} learns from recorded data, and its reports have no "
            "return; search its settings with `sampleforge sweep` and metric: "
            "eval_return_mean"
        )
    resolved, batch = _planned(config, spec)
    around = _of_replay if config.topology == "replay" else _of_rollouts
    wanted = {n: values for n, values in around(resolved, batch).items() if hasattr(resolved, n)}
    ranges: dict[str, Range] = {"learning_rate": _rates(resolved.learning_rate)}
    defaults = {"learning_rate": resolved.learning_rate}
    for name, values in wanted.items():
        default = batch if name == "batch_size" else getattr(resolved, name)
        fitting = _fitting(values, default, partial(_runs, config, spec, name))
        if len(fitting) > 1:
            ranges[name], defaults[name] = {"choices": fitting}, default
    return ranges, defaults


def _of_rollouts(config: Any, batch: int) -> dict[str, Iterable[Any]]:
    """Return values to try of a resolved config that learns from batches of rollouts, of so many
    env steps."""
    values: dict[str, Iterable[Any]] = {
        "exploration_coeff": (0.0, 0.001, 0.003, 0.01, 0.03),
        "gamma": (0.97, 0.98, 0.99, 0.995, 0.999),
        "gae_lambda": (0.8, 0.9, 0.95, 0.98, 1.0),
        "return_lambda": (0.5, 0.65, 0.8, 0.9, 0.95),
        "clip_ratio": (0.1, 0.2, 0.3),
    }
    if config.async_rl:
        return {**values, "num_epochs": (1, 2, 4), "batch_size": _halves_and_doubles(batch)}
    return {
        **values,
        "num_epochs": (3, 5, 10, 20),
        "rollout": _halves_and_doubles(config.rollout),
        "minibatch_size": _halves_and_doubles(config.minibatch_size, 2),
    }


def _of_replay(config: Any, batch: int) -> dict[str, Iterable[Any]]:
    """Return values to try of a resolved config that learns from a replay, from samples of so many
    items."""
    values: dict[str, Iterable[Any]] = {
        "gamma": (0.97, 0.98, 0.99, 0.995, 0.999),
        "n_step": (1, 3, 5, 10),
        "target_update_interval": _halves_and_doubles(
            getattr(config, "target_update_interval", None), 2
        ),
        "updates_per_env_step": (0.25, 0.5, 1.0, 2.0),
        "target_rate": (0.002, 0.005, 0.01, 0.02),
        "batch_size": _halves_and_doubles(batch),
        "priority_alpha": (0.0, 0.4, 0.6, 0.9),
    }
    ratio = config.samples_per_insert
    if isinstance(ratio, float):  # with critics of actions it follows from the updates
        values["samples_per_insert"] = (ratio / 2, ratio, 2 * ratio, 4 * ratio)
    if not getattr(config, "noisy_nets", False):
        values["epsilon_base"] = (0.2, 0.4, 0.7)
    return values


def _rates(default: float) -> Range:
    return {"low": default / RATE_FACTOR, "high": default * RATE_FACTOR, "log": True}


def _halves_and_doubles(number: int | None, times: int = 1) -> list[int]:
    """Return a number divided by and multiplied with 2, 4 and so on, as often as ``times``; nothing
    for None."""
    if number is None:
        return []
    down = [number // 2**k for k in range(times, 0, -1) if number % 2**k == 0]
    return [*down, number, *(number * 2**k for k in range(1, times + 1))]


def _fitting(values: Iterable[Any], default: Any, runs: Callable[[Any], bool]) -> list[Any]:
    """Return the default, if there is one, and those of the values with which a run can begin, in
    order."""
    if default is None:
        return []
    return sorted({default, *(value for value in values if value != default and runs(value))})


def _planned(config: Any, spec: EnvSpec) -> tuple[Any, int]:
    """Return a config with its defaults resolved, and its batch size. Raises ConfigError if it
    cannot run."""
    chosen = pairing(config)
    resolved = chosen.resolved(config, spec)
    plan = chosen.plan(resolved, spec, run_device(config, spec))
    return resolved, int(plan.batch_size)


def _runs(config: Any, spec: EnvSpec, name: str, value: Any) -> bool:
    """Return whether a run with another value of one setting can begin."""
    try:
        _planned(dataclasses.replace(config, **{name: value}), spec)
    except ConfigError:
        return False
    return True


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
    seconds = trial_seconds(asked, minutes, seconds_before(asked))
    shared = settings_of_trials(asked, seconds)
    ranges, defaults = _space(asked, shared)
    with asked.sweep_folder() as folder, tempfile.TemporaryDirectory() as scratch:
        spec = _spec(asked, ranges, shared, Path(scratch) / "sweep.yaml")

        config = JobsConfig(jobs=asked.jobs or 1)
        with launched_in(folder, "sweep", config, 1, partial(Sweep, spec)) as (sweep, jobs):
            sweep.propose(defaults)
            budget = Budget(sweep, 60.0 * minutes, seconds)
            told: dict[int, str] = {}
            screen = JobsScreen(
                lambda: _panel(budget, spec), lambda: news(sweep.trials(), spec, told)
            )
            screen.say(
                f"Searching {', '.join(ranges)} for {minutes:g} min: trials of {seconds:g} "
                f"s, {jobs.limit} at a time, the defaults first, in {folder}"
            )
            if left_out := ends_of_preset(asked):
                ends = " ".join(typed(name, value) for name, value in left_out.items())
                screen.say(f"The trials do not end by {ends} of --preset {asked.preset}")
            try:
                code = run_jobs(budget, jobs, screen, leave=False)
            except LaunchFailed as error:
                screen.say(f"nothing found: {error}")
                return 1
            failed = _report(asked, sweep, screen, out, seconds)
            return code or failed


def seconds_before(asked: TuneConfig) -> float | None:
    """Return the seconds of a trial of the search in ``asked.folder``; None if there is none yet.
    Raises ConfigError if it is another search than the one that is asked for."""
    before = Sweep.specification(Path(asked.folder)) if asked.folder else None
    config = before.get("config") if before else None
    if before is None or not isinstance(config, Mapping):
        return None
    seconds = config.get("train_for_seconds")
    if not isinstance(seconds, float | int):  # the trials of another sweep, which is refused later
        return None
    now = asked.seconds_per_trial or seconds
    found = _words(config.get("env"), before.get("algo"), before.get("preset"), seconds)
    if found != (wanted := _words(asked.env, asked.algo, asked.preset, now)):
        raise ConfigError(
            f"the search in {asked.folder} is of {found}, not of {wanted}; ask for the same to go "
            "on with it, or give another --folder"
        )
    return seconds


def _words(env: Any, algo: Any, preset: Any, seconds: float) -> str:
    """Return what tells searches apart, as it is typed."""
    words = [str(env), str(algo), *([typed("preset", preset)] if preset else [])]
    return " ".join([*words, f"--seconds-per-trial {seconds:g}"])


def trial_seconds(asked: TuneConfig, minutes: float, before: float | None = None) -> float:
    """Return the seconds of training of a trial; ``before``: of those that the search has already.
    Raises ConfigError if the budget has no room for two of them."""
    jobs = asked.jobs or 1
    default = before or max(SHORTEST_S, round(60.0 * minutes * jobs / PARTS))
    seconds = asked.seconds_per_trial or default
    if 2 * seconds > 60.0 * minutes * jobs:
        shorter = "or give shorter trials with --seconds-per-trial"
        if before:
            shorter = f"or give another --folder than {asked.folder}, whose trials have that length"
        raise ConfigError(
            f"--minutes {minutes:g}: there is no time for two trials of {seconds:g} s, of which "
            f"the first has the defaults; raise it, {shorter}"
        )
    return seconds


def settings_of_trials(asked: TuneConfig, seconds: float) -> dict[str, Any]:
    """Return what all trials have beside the preset: the environment, and their end."""
    never: dict[str, Any] = {name: [] if name == "stop" else None for name in ends_of_preset(asked)}
    return {"env": asked.env, **never, "train_for_seconds": seconds}


def ends_of_preset(asked: TuneConfig) -> dict[str, Any]:
    """Return the conditions of the preset by which a trial could end before its seconds."""
    preset = asked.preset_values()
    return {name: preset[name] for name in ("train_for_env_steps", "stop") if preset.get(name)}


def _space(asked: TuneConfig, shared: Mapping[str, Any]) -> tuple[dict[str, Range], dict[str, Any]]:
    """Return the settings to search, as `search_space` does. Raises ConfigError if the environment
    cannot be made."""
    config = from_plain(config_class(asked.algo), {**asked.preset_values(), **shared})
    make_cwd_importable()
    try:
        spec = probe(config)
    except EnvProbeError as error:
        raise ConfigError(f"The environment {error.what}:\n{error}") from error
    return search_space(config, spec)


def _spec(
    asked: TuneConfig, ranges: Mapping[str, Range], shared: Mapping[str, Any], path: Path
) -> SweepSpec:
    """Return the sweep, after writing it to ``path`` as a file for `sampleforge sweep`."""
    content: dict[str, Any] = {"algo": asked.algo}
    content |= {"preset": asked.preset} if asked.preset else {}
    content |= {
        "trials": MOST_TRIALS,
        "pruner": "median",
        "config": dict(shared),
        "search": dict(ranges),
    }
    head = f"# Written by `{asked.for_return}`.\n"
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
        unended = any(trial.state in ("waiting", "running") for trial in trials)
        again = f"; the same command with --folder {sweep.folder} goes on" if unended else ""
        screen.say(f"nothing found: {reason}{again}")
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
        f"# `{asked.for_return}`{beside}.\n"
    )
    write_tuned(screen.console, asked, out, head, best["params"], sweep.folder)
    return 0

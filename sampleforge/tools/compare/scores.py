"""The scores of runs by setting, seed and environment, from the evaluations of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from sampleforge.config import ConfigError, difference, nearest
from sampleforge.run.folder.stored_config import SAME_SETTING
from sampleforge.tools.plots.curves import (
    MOST_NAMED,
    Curves,
    Floats,
    differences,
    finite_line,
    grouped,
)

OF_ENVIRONMENT = frozenset(
    {
        "env",
        "env_kwargs",
        "max_episode_steps",
        "train_for_env_steps",
        "train_for_seconds",
        "stop",
    }
)
"""Fields in which runs of one setting may differ from environment to environment."""


class ScoreRule(NamedTuple):
    """What is compared. ``pick``: the evaluation that is a run's score, the last or the best, up to
    ``at`` env steps (None: of all); ``by``: the names (algo, policy, fields of the config) that
    alone tell settings apart; empty: all of them."""

    pick: Literal["last", "best"] = "last"
    at: int | None = None
    by: tuple[str, ...] = ()


class Score(NamedTuple):
    """The score of a run: the mean return of an evaluation, and the env steps of training at which
    its weights were copied."""

    value: float
    env_steps: int


@dataclass(frozen=True)
class ScoredSetting:
    """The runs of one setting, ``runs[env][seed]``, with as many seeds in each environment.
    ``returns`` and ``env_steps``: of their `Score`, [seeds, envs]."""

    label: str
    runs: Sequence[Sequence[Curves]]
    returns: Floats
    env_steps: Floats

    @property
    def seeds(self) -> int:
        return len(self.returns)

    def lines(self, env: int, at: int | None) -> list[tuple[Floats, Floats]]:
        """Return env steps and mean returns of the evaluations up to ``at`` env steps of each run
        in an environment."""
        lines = [evaluations(run) for run in self.runs[env]]
        return [(x[x <= at], y[x <= at]) for x, y in lines] if at is not None else lines


def evaluations(run: Curves) -> tuple[Floats, Floats]:
    """Return the env steps of training, rising, and the mean returns of a run's evaluations. Raises
    ConfigError if there is none."""
    steps, returns = run.evaluations("env_steps")
    order = np.argsort(steps, kind="stable")
    x, y = finite_line(steps[order], returns[order])
    if not len(x):
        raise ConfigError(
            f"{run.name}: the run has no evaluations, which scores are made of; train it with "
            "--evaluate-interval N, which evaluates every N env steps beside the training"
        )
    return x, y


def score(run: Curves, rule: ScoreRule) -> Score:
    """Return the score of a run. Raises ConfigError if it has no evaluation, or was not trained for
    ``rule.at`` env steps."""
    steps, returns = evaluations(run)
    if rule.at is not None:
        trained = int(run.reports[-1]["env_steps"])
        if trained < rule.at:
            raise ConfigError(
                f"--at {rule.at}: {run.name} was trained for {trained:,} env steps only; lower it, "
                "or leave out the run"
            )
        known = steps <= rule.at
        if not known.any():
            raise ConfigError(
                f"--at {rule.at}: the first evaluation of {run.name} is that of "
                f"{int(steps[0]):,} env steps; raise it"
            )
        steps, returns = steps[known], returns[known]
    index = int(np.argmax(returns)) if rule.pick == "best" else len(steps) - 1
    return Score(float(returns[index]), int(steps[index]))


def scored_settings(
    runs: Sequence[Curves], rule: ScoreRule
) -> tuple[list[str], list[ScoredSetting]]:
    """Return the environments in the order of their first runs, and the settings with their scores.

    In one environment, the runs of a setting agree in everything but their seeds, as those that
    `sampleforge plot` draws as one line. In several, a setting is what the runs were given, without
    `OF_ENVIRONMENT`: what they left open depends on the environment. Raises ConfigError for
    settings that cannot be compared.
    """
    envs = list(dict.fromkeys(run.env for run in runs))
    _check_names(rule.by, runs)
    parts = [_counted(run, rule.by, len(envs) > 1) for run in runs]
    own = {id(part): run for part, run in zip(parts, runs, strict=True)}
    groups = grouped(parts)
    labels = _labels([group[0] for group in groups])
    settings = []
    for label, group in zip(labels, groups, strict=True):
        members = [own[id(part)] for part in group]
        cells = [[run for run in members if run.env == env] for env in envs]
        _check_cells(label, envs, cells, by=bool(rule.by))
        scores = [[score(run, rule) for run in cell] for cell in cells]
        table = np.array(scores, np.float64).transpose(2, 1, 0)  # value and env steps, seeds, envs
        settings.append(ScoredSetting(label, cells, table[0], table[1]))
    return envs, settings


def _counted(run: Curves, by: Sequence[str], several: bool) -> Curves:
    """Return a run that has only the fields which make its setting, and no environment.
    ``several``: there are runs in several environments."""
    if by:
        algo, policy = (getattr(run, n) if n in by else "" for n in ("algo", "policy"))
        fields = {name: run.config[name] for name in by if name in run.config}
        return replace(run, env="", algo=algo, policy=policy, config=fields)
    if not several:
        return replace(run, env="")
    fields = {
        name: value
        for name, value in run.config.items()
        if name in run.given and name.partition(".")[0] not in OF_ENVIRONMENT
    }
    return replace(run, env="", config=fields)


def _check_names(by: Sequence[str], runs: Sequence[Curves]) -> None:
    """Raise ConfigError for a name of --by that is none."""
    known = ["algo", "policy", *dict.fromkeys(name for run in runs for name in run.config)]
    for name in by:
        if name not in known:
            near = nearest(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--by {name}: no run has a setting of that name{hint}")


def _labels(firsts: Sequence[Curves]) -> list[str]:
    """Return what tells settings apart, of which ``firsts`` are one run each: few words, or all if
    few are the same for two settings."""
    most = len({name for run in firsts for name in run.config})
    for number in (MOST_NAMED, most):
        words = [differences(run, firsts, number) for run in firsts]
        labels = [", ".join(each) or run.algo for each, run in zip(words, firsts, strict=True)]
        if len(set(labels)) == len(labels):
            break
    return labels


def _check_cells(
    label: str, envs: Sequence[str], cells: Sequence[Sequence[Curves]], *, by: bool
) -> None:
    """Raise ConfigError unless a setting has as many runs in each environment, and those of one
    environment differ only in their seeds (with --by: in what is not named there)."""
    counts = {env: len(cell) for env, cell in zip(envs, cells, strict=True)}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} in {env}" for env, count in counts.items())
        raise ConfigError(
            f"{label or 'the setting'} has a different number of runs in each environment: "
            f"{shown}. Environments count alike only with as many seeds in each: train the missing "
            "ones, or leave out some runs"
        )
    for env, cell in zip(envs, cells, strict=True):
        kinds = [] if by else grouped(cell)
        if len(kinds) > 1:
            one, other = kinds[0][0], kinds[1][0]
            fields = [
                {n: v for n, v in run.config.items() if n not in SAME_SETTING}
                for run in (one, other)
            ]
            changes = "\n  ".join(difference(*fields))
            raise ConfigError(
                f"{one.name} and {other.name} are of the same setting in {env}, but differ in more "
                f"than their seeds:\n  {changes}\nleave out one of them, or say with --by which "
                "settings to compare"
            )

"""The scores of runs by setting, seed and environment, from the evaluations of each run, and the
scales on which those of different environments are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from sampleforge.config import ConfigError, difference, typed
from sampleforge.names import nearest
from sampleforge.run.folder.stored_config import EVALUATED, SAME_SETTING
from sampleforge.tools.plots.curves import (
    MOST_NAMED,
    Curves,
    Floats,
    differences,
    finite_line,
    grouped,
    in_words,
)


class Scale(NamedTuple):
    """The return that counts as 0, and the one that counts as 1. ``source``: where it is from."""

    low: float
    high: float
    source: str = "given"

    def __call__(self, returns: Floats) -> Floats:
        return (returns - self.low) / (self.high - self.low)


ATARI: dict[str, tuple[float, float]] = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}
"""Game -> returns of random play and of a human tester, as in Wang et al. 2016 (arXiv 1511.06581)
and the papers after it: unclipped, whole games, up to 30 no-ops at the start, at most 108,000
frames."""
HUMAN = "random and human play, Wang et al. 2016"


def scales(envs: Iterable[str], words: Mapping[str, object]) -> dict[str, Scale]:
    """Return the scale of each of ``envs`` that has one: that of ``words`` (environment -> text
    LOW..HIGH), or for an Atari game that of random and human play. Raises ConfigError for a word
    that is no range, or whose environment is not among ``envs``."""
    known = list(dict.fromkeys(envs))
    given = {}
    for env, word in words.items():
        if env not in known:
            near = nearest(env, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"they are in {', '.join(known)}"
            raise ConfigError(f"--normalise {env}={word}: no run is in {env}; {hint}")
        given[env] = _scale(env, str(word))
    return {env: scale for env in known if (scale := given.get(env) or of_atari(env)) is not None}


def _scale(env: str, word: str) -> Scale:
    low, dots, high = word.partition("..")
    try:
        scale = Scale(float(low), float(high))
    except ValueError:
        scale = Scale(1.0, 1.0)
    if not (dots and -float("inf") < scale.low < scale.high < float("inf")):
        raise ConfigError(
            f"--normalise {env}={word}: must be LOW..HIGH with two numbers, the returns that count "
            "as 0 and as 1, as in CartPole-v1=0..500"
        )
    return scale


def of_atari(env: str) -> Scale | None:
    """Return the scale of random and human play of an Atari game, such as ALE/Pong-v5; None for
    another environment."""
    if not env.startswith("ALE/"):
        return None
    game = env.removeprefix("ALE/").partition("-")[0]
    return Scale(*ATARI[game], HUMAN) if game in ATARI else None


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
    alone tell settings apart; empty: all of them. With ``of_training``, the mean return of the last
    training episodes takes the place of evaluations."""

    pick: Literal["last", "best"] = "last"
    at: int | None = None
    by: tuple[str, ...] = ()
    of_training: bool = False

    @property
    def unit(self) -> str:
        """What a score is the return of."""
        return "mean of training episodes" if self.of_training else "evaluation"


@dataclass(frozen=True)
class ScoredSetting:
    """The runs of one setting, ``runs[env][seed]``, with as many seeds in each environment.
    ``returns`` and ``env_steps``: those of their `score`, [seeds, envs]."""

    label: str
    runs: Sequence[Sequence[Curves]]
    returns: Floats
    env_steps: Floats

    @property
    def seeds(self) -> int:
        return len(self.returns)

    def lines(self, env: int, rule: ScoreRule) -> list[tuple[Floats, Floats]]:
        """Return env steps and mean returns of what scores are made of, up to ``rule.at`` env steps
        of each run in an environment."""
        lines, at = [results(run, rule) for run in self.runs[env]], rule.at
        return [(x[x <= at], y[x <= at]) for x, y in lines] if at is not None else lines


def results(run: Curves, rule: ScoreRule) -> tuple[Floats, Floats]:
    """Return the env steps of training, rising, and the mean returns of a run's evaluations, or of
    its training episodes. Raises ConfigError if there is none."""
    steps, returns = (run.training if rule.of_training else run.evaluations)("env_steps")
    order = np.argsort(steps, kind="stable")
    x, y = finite_line(steps[order], returns[order])
    if not len(x):
        raise ConfigError(
            f"{run.name}: the run has no evaluations and no training episodes, which scores are "
            "made of; train it for longer, or with --evaluate-interval N, which evaluates every N "
            "env steps beside the training"
        )
    return x, y


def score(run: Curves, rule: ScoreRule) -> tuple[float, int]:
    """Return the score of a run, which is the mean return of an evaluation (or of training
    episodes), and the env steps of training at which its weights were copied. Raises ConfigError if
    it has none, or was not trained for ``rule.at`` env steps."""
    steps, returns = results(run, rule)
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
                f"--at {rule.at}: the first {rule.unit} of {run.name} is that of "
                f"{int(steps[0]):,} env steps; raise it"
            )
        steps, returns = steps[known], returns[known]
    index = int(np.argmax(returns)) if rule.pick == "best" else len(steps) - 1
    return float(returns[index]), int(steps[index])


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
    for env in envs:
        _check_kinds([run for run in runs if run.env == env], rule)
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
    """Raise ConfigError for a name of --by that is none, or that tells no settings apart."""
    known = ["algo", "policy", *dict.fromkeys(name for run in runs for name in run.config)]
    for name in by:
        if name.partition(".")[0] in SAME_SETTING:
            raise ConfigError(
                f"--by {name}: runs of one setting may differ in it, so that it tells no settings "
                "apart; leave it out, or compare such runs by themselves"
            )
        if name not in known:
            near = nearest(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--by {name}: no run has a setting of that name{hint}")


def _check_kinds(runs: Sequence[Curves], rule: ScoreRule) -> None:
    """Raise ConfigError for runs in one environment whose scores measure different things."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        kinds.setdefault(_measured(run, rule), []).append(run.name)
    if len(kinds) > 1:
        lines = "\n  ".join(f"{words}: {', '.join(names)}" for words, names in kinds.items())
        raise ConfigError(
            f"the scores of these runs in {runs[0].env} (each the {rule.unit}) are of different "
            f"kinds, and cannot be compared:\n  {lines}\ngive the runs of one kind at a time, or "
            "train with the same flags"
        )


def _measured(run: Curves, rule: ScoreRule) -> str:
    """Return the flags that say what the score of a run measures, as they are typed."""
    if rule.of_training:
        return typed("metrics_window", run.config.get("metrics_window", 100))
    words = []
    for name in EVALUATED:
        inner = {n: v for n, v in sorted(run.config.items()) if n.startswith(f"{name}.")}
        value = run.config.get(name) or {n.partition(".")[2]: v for n, v in inner.items()}
        words += [typed(name, value)] if value else []
    return " ".join(words) or "evaluations by default"


def _labels(firsts: Sequence[Curves]) -> list[str]:
    """Return what tells settings apart, of which ``firsts`` are one run each: few words, or all if
    few are the same for two settings."""
    most = len({name for run in firsts for name in run.config})
    for number in (MOST_NAMED, most):
        words = [differences(run, firsts, number) for run in firsts]
        labels = [", ".join(each) or _alone(run) for each, run in zip(words, firsts, strict=True)]
        if len(set(labels)) == len(labels):
            break
    return labels


def _alone(run: Curves) -> str:
    """Return the label of a setting that nothing tells from others: its algorithm, or with --by
    what is named there."""
    if run.algo:
        return run.algo
    fields = [f"{name.replace('_', ' ')} {in_words(value)}" for name, value in run.config.items()]
    return ", ".join(word for word in (run.policy, *fields) if word) or "all runs"


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

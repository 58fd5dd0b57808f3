"""What trainings took to learn: the table that the advice of `sampleforge check-env` rests on.

The scores of the presets (`sampleforge.presets.scores`) are a part of it, and what the defaults
learn, as benchmarks/defaults.py has measured it. Every figure stands on a page of
benchmarks/results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Literal

from sampleforge import presets
from sampleforge.presets import preset_names, preset_values
from sampleforge.presets.fit import kind_of
from sampleforge.presets.scores import PresetScore, read_scores
from sampleforge.topologies.config import ALGOS

Kind = Literal["vectors", "planes", "pixels", "few actions", "many actions", "goals", "memory"]
"""The kinds of environment for which there is a measurement. "vectors", "planes" and "pixels" have
discrete actions. "few actions" and "many actions" are Box actions, few: one or two numbers."""


@dataclass(frozen=True)
class Measured:
    """A training that was measured in ``env``.

    ``preset``: its preset, or empty; ``flags``: those of its command, or, of a preset, those of its
    settings that are for other environments as well. ``env_steps``, ``seconds``: how many it made,
    and how long it took with its simulation; ``score``: the mean return of its evaluation;
    ``page``: the file of benchmarks/results with these figures."""

    algo: str
    env: str
    env_steps: int
    seconds: float
    score: float
    page: str
    preset: str = ""
    flags: str = ""


DEFAULTS: Mapping[Kind, Sequence[tuple[str, str]]] = {
    "vectors": [("appo", "LunarLander-v3")],
    "planes": [("appo", "MinAtar/Breakout-v1"), ("apex", "MinAtar/Breakout-v1")],
    "few actions": [("appo", "Pendulum-v1")],
    "many actions": [("appo", "HalfCheetah-v5")],
}
"""Algorithms and environments where what the defaults learn speaks for a kind."""
TABLE: Mapping[Kind, Sequence[Measured]] = {
    "pixels": [
        Measured("appo", "ALE/Pong-v5", 400_000, 595, 19.7, "levers.md"),
        Measured("apex", "ALE/Pong-v5", 2_060_000, 5340, 20.75, "learning.md", "pong"),
    ],
    "many actions": [
        Measured(
            "crossq",
            "HalfCheetah-v5",
            40_028,
            200,
            5203,
            "crossq.md",
            flags="--model.hidden-sizes 128 128",
        ),
    ],
    "goals": [
        Measured(
            "sac",
            "PointMaze_UMaze-v3",
            25_034,
            418,
            248,
            "sac.md",
            flags="--her --no-decorrelate --model.normalise-observations "
            "--model.hidden-sizes 64 64 --learning-rate 1e-3",
        )
    ],
    "memory": [
        Measured(
            "appo",
            "popgym-RepeatPreviousEasy-v0",
            200_000,
            97,
            0.968,
            "levers.md",
            flags="--model.core gru",
        )
    ],
}
"""Other measurements that speak for a kind."""
PRESETS: Mapping[Kind, tuple[str, str, str]] = {
    "pixels": ("appo", "pong", ""),
    "few actions": ("crossq", "pendulum", "--learning-starts 500"),
}
"""Algorithms, presets and flags whose scores are measurements of a kind as well."""
FURTHER = (
    Measured("sac", "HalfCheetah-v5", 1_000_000, 4000, 10202, "sac.md", "halfcheetah"),
    Measured("appo", "MountainCar-v0", 200_000, 14, -106.6, "exploration.md", "", "--rnd-coeff 1"),
)
"""Measurements that are advice for their own environment alone."""


@cache
def by_defaults() -> Sequence[Measured]:
    """Return what algorithms learn by their defaults: the median of the returns over the seeds, and
    the least time, because others may have run on the same cores."""
    lines = (presets.FOLDER / "defaults.jsonl").read_text(encoding="utf-8").splitlines()
    return [Measured(**json.loads(line), page="defaults.md") for line in lines]


def measured_of(kind: Kind) -> list[Measured]:
    """Return the measurements that are comparable with an environment of a kind."""
    usual = DEFAULTS.get(kind, ())
    rows = [row for row in by_defaults() if (row.algo, row.env) in usual] + [*TABLE.get(kind, ())]
    if kind in PRESETS:
        algo, preset, flags = PRESETS[kind]
        score = read_scores().get((algo, preset, ""))
        rows += [replace(_of(score), flags=flags)] if score is not None else []
    return rows


def measured_in(env: str) -> list[Measured]:
    """Return the best measurement of each algorithm in the environment ``env`` itself; or those of
    presets that were measured in another environment of its kind than the one they were made for,
    as an Atari game's was in a second one; or none."""
    scores = read_scores().values()
    own = [_of(score) for score in scores if not score.variant and is_same(score.env, env)]
    usual = [row for row in by_defaults() if row.algo == "appo"]  # others are behind
    rows = [*usual, *FURTHER, *(row for rows in TABLE.values() for row in rows)]
    own += [row for row in rows if is_same(row.env, env)]
    variants = [score for score in scores if score.variant and _is_transfer(score)]
    if not own:
        own = [_of(score) for score in variants if is_same(score.env, env)]
    if not own:
        kind = kind_of(env)
        own = [_of(score) for score in variants if kind_of(score.env) == kind]
    best = dict[str, Measured]()
    for row in own:
        if row.algo not in best or row.score > best[row.algo].score:
            best[row.algo] = row
    return [*best.values()]


def unmeasured_presets() -> Iterator[tuple[str, str]]:
    """Yield the algorithm and the name of each preset that has no measured score."""
    known = {(row.algo, row.preset) for row in FURTHER}
    known |= {(algo, preset) for algo, preset, _ in read_scores()}
    for algo in ALGOS:
        for name in preset_names(algo):
            if (algo, name) not in known:
                yield algo, name


def is_same(one: str, other: str) -> bool:
    """Return whether two ids are those of one environment, whatever the versions."""
    return re.sub(r"-v\d+$", "", one) == re.sub(r"-v\d+$", "", other)


def _is_transfer(score: PresetScore) -> bool:
    return not is_same(score.env, str(preset_values(score.algo, score.preset).get("env", "")))


def _of(score: PresetScore) -> Measured:
    steps, page = round(median(score.env_steps)), "presets.md"
    return Measured(score.algo, score.env, steps, score.time, score.score, page, score.preset)

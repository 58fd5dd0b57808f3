"""Where the time goes: the stages of an env step, from what the workers count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Role = Literal["actor", "policy", "learner"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """``us``: microseconds per env step collected, summed over the processes that do it; ``share``:
    part of these processes' time, 0 to 1. By the clock: where there are more processes than cores,
    a stage includes the time for which its process was not on a core."""

    name: str
    role: Role
    us: float
    share: float
    means: str


MEANING = {
    "emulate": "in the environments",
    "gather": "collecting observations for a forward pass",
    "forward": "policy forward pass and sampling",
    "hand-over": "actors waiting for slots or actions",
    "bookkeeping": "the rest of the actors' loop",
    "policy idle": "policy workers waiting for requests",
    "batch": "copying slots into batches",
    "learn": "loss, gradients and optimiser steps",
    "publish": "publishing the weights",
    "learner idle": "learner waiting for experience",
}
OF_RANKS = {
    "hand-over": "ranks waiting for each other",
    "bookkeeping": "the rest of the sampling loop",
}


@dataclass(frozen=True)
class Roles:
    """Which counter rows are whose: ``actors`` step environments (and may do more), ``policies``
    only infer, ``learners`` only learn. ``ranks``: the actors learn as well, and what they wait
    for, while they learn, is each other."""

    actors: Sequence[int]
    policies: Sequence[int]
    learners: Sequence[int]
    ranks: bool = False


def stages(counted: dict[str, Floats], roles: Roles, seconds: float) -> list[Stage]:
    """The stage table from what every worker counted in a window of ``seconds``: name -> [workers],
    as in `sampleforge.topologies.graph.COUNTERS`."""
    steps = max(1.0, float(counted["env_steps"].sum()))
    rows = {"actor": roles.actors, "policy": roles.policies, "learner": roles.learners}
    remote = bool(roles.policies)

    def spent(name: str, role: Role) -> float:
        return float(counted[name][list(rows[role])].sum())

    def everywhere(name: str) -> float:
        return float(counted[name].sum())

    learning: Role = "learner" if roles.learners else "actor"
    inferring: Role = "policy" if remote else "actor"
    own = spent("step_s", "actor") - spent("env_s", "actor") - spent("infer_s", "actor")
    asking = spent("infer_s", "actor") if remote else 0.0
    meanwhile = spent("wait_s", "actor") if roles.ranks else 0.0
    meaning = MEANING | (OF_RANKS if roles.ranks else {})
    found: list[tuple[str, Role, float]] = [
        ("emulate", "actor", spent("env_s", "actor")),
        ("gather", inferring, everywhere("gather_s")),
        ("forward", inferring, spent("infer_s", inferring) - everywhere("gather_s")),
        ("hand-over", "actor", spent("wait_s", "actor") + asking),
        ("bookkeeping", "actor", max(0.0, own)),
        ("policy idle", "policy", spent("wait_s", "policy")),
        ("batch", learning, everywhere("batch_s")),
        ("learn", learning, max(0.0, everywhere("learn_s") - meanwhile)),
        ("publish", learning, everywhere("publish_s")),
        ("learner idle", "learner", spent("wait_s", "learner")),
    ]
    return [
        Stage(name, role, s / steps * 1e6, s / (len(rows[role]) * seconds), meaning[name])
        for name, role, s in found
        if rows[role]
    ]

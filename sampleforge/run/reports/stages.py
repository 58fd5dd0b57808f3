"""The stage table: the time of an env step by stages, from the workers' counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sampleforge.topologies import graph

Role = Literal["actor", "policy", "learner", "replay"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StageTime:
    """The time of one stage: ``us``, microseconds per collected env step, summed over the processes
    of ``role``, and ``share``, the fraction (0 to 1) of the time of these processes.

    Times are by the clock: with more processes than cores a stage includes the time for which its
    process was not on a core."""

    name: str
    role: Role
    us: float
    share: float
    means: str


MEANING = {
    "env step": "in the environments",
    "gather": "collecting observations for a forward pass",
    "forward": "policy forward pass and sampling",
    "hand-over": "actors waiting for slots or actions",
    "bookkeeping": "the rest of the actors' loop",
    "policy idle": "policy workers waiting for requests",
    "insert": "putting rollouts into the replay",
    "draw": "drawing samples, taking new priorities",
    "replay idle": "replay workers waiting for rollouts or requests",
    "batch": "copying slots into batches",
    "learn": "loss, gradients and optimiser steps",
    "publish": "publishing the weights",
    "learner idle": "learner waiting for experience",
}
"""Stage -> where its time goes, as the table shows it."""
RANK_MEANING = {
    "hand-over": "ranks waiting for each other",
    "bookkeeping": "the rest of the sampling loop",
}
"""The meaning of the stages that are others in DD-PPO."""


@dataclass(frozen=True)
class Roles:
    """The counter rows of the workers by role: ``actors`` step environments, ``policies`` only
    infer, ``learners`` only learn, ``replays`` hold a shard of the replay. ``ranks``: the actors
    are ranks, which also learn and then wait for each other."""

    actors: Sequence[int]
    policies: Sequence[int]
    learners: Sequence[int]
    ranks: bool = False
    replays: Sequence[int] = ()


def roles_of(wired: graph.Graph) -> Roles:
    """Return the counter rows of a graph's workers by role."""

    def rows(*roles: graph.Role) -> list[int]:
        return [node.counter_row for node in wired.having(*roles)]

    return Roles(
        rows("actor", "rank", "dataset"),
        rows("policy"),
        rows("learner"),
        bool(rows("rank")),
        rows("replay"),
    )


def stages(counted: dict[str, Floats], roles: Roles, seconds: float) -> list[StageTime]:
    """Return the stage table of a window of ``seconds``. ``counted``: what every worker has counted
    in it, name of `sampleforge.topologies.graph.COUNTERS` -> [workers]."""
    steps = max(1.0, float(counted["env_steps"].sum()))
    rows = {
        "actor": roles.actors,
        "policy": roles.policies,
        "learner": roles.learners,
        "replay": roles.replays,
    }
    remote = bool(roles.policies)

    def spent(name: str, role: Role) -> float:
        return float(counted[name][list(rows[role])].sum())

    def everywhere(name: str) -> float:
        return float(counted[name].sum())

    learning: Role = "learner" if roles.learners else "actor"
    inferring: Role = "policy" if remote else "actor"
    rest = spent("step_s", "actor") - spent("env_s", "actor") - spent("infer_s", "actor")
    requests = spent("infer_s", "actor") if remote else 0.0
    waits_in_learning = spent("wait_s", "actor") if roles.ranks else 0.0
    meaning = MEANING | (RANK_MEANING if roles.ranks else {})
    seconds_of: list[tuple[str, Role, float]] = [
        ("env step", "actor", spent("env_s", "actor")),
        ("gather", inferring, everywhere("gather_s")),
        ("forward", inferring, spent("infer_s", inferring) - everywhere("gather_s")),
        ("hand-over", "actor", spent("wait_s", "actor") + requests),
        ("bookkeeping", "actor", max(0.0, rest)),
        ("policy idle", "policy", spent("wait_s", "policy")),
        ("insert", "replay", spent("insert_s", "replay")),
        ("draw", "replay", spent("draw_s", "replay")),
        ("replay idle", "replay", spent("wait_s", "replay")),
        ("batch", learning, everywhere("batch_s")),
        ("learn", learning, max(0.0, everywhere("learn_s") - waits_in_learning)),
        ("publish", learning, everywhere("publish_s")),
        ("learner idle", "learner", spent("wait_s", "learner")),
    ]
    return [
        StageTime(name, role, s / steps * 1e6, s / (len(rows[role]) * seconds), meaning[name])
        for name, role, s in seconds_of
        if rows[role]
    ]

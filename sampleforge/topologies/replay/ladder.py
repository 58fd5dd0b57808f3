"""The ladder of exploration: each env row explores less than the one before, and the rows of each
actor are spread over the whole ladder."""

from __future__ import annotations

import math
from typing import Any

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.topologies.graph import Exploration, Row
from sampleforge.topologies.sampler_plan import SamplerPlan


def ladder_of(algorithm: Algorithm, config: Any, plan: SamplerPlan) -> torch.Tensor:
    """Return the exploration of the env rows, the largest first, float32 [plan.envs]."""
    assert algorithm.exploration is not None
    return algorithm.exploration(config, plan.envs)


def ladder_index(plan: SamplerPlan, actor: int, split: int, row: int) -> int:
    """Return the index of an env row on the ladder of exploration, 0 for the row that explores
    most. The rows of each actor are spread over the whole ladder."""
    return (split * plan.rows + row) * plan.num_workers + actor


def of_rows(ladder: torch.Tensor, plan: SamplerPlan) -> torch.Tensor:
    """Return the step of the ``ladder`` [plan.envs] of every agent of every env row of the run, in
    the order of actors, splits, seats, rows. All agents of an env row have the same."""
    actors, splits, rows = range(plan.num_workers), range(plan.num_splits), range(plan.rows)
    order = [(a, s, r) for a in actors for s in splits for _ in range(plan.num_seats) for r in rows]
    return ladder[[ladder_index(plan, *row) for row in order]]


def exploration(
    ladder: torch.Tensor, plan: SamplerPlan, member: int = 0, members: int = 1
) -> Exploration:
    """Return the exploration of each env row of a policy, given the ``ladder`` [plan.envs]: of all
    env rows, or of those in the splits of one of several ``members`` of a population, see
    `acting_plan`."""

    def acting(row: Row) -> Row:
        return row[0], row[1] * members + member if members > 1 else row[1], row[2]

    steps = ladder.tolist()
    epsilons = {row: steps[ladder_index(plan, *row)] for row in _rows(plan)}
    thirds = exploration_thirds(plan)
    return Exploration(
        {acting(row): third for row, third in thirds.items()},
        {acting(row): epsilon for row, epsilon in epsilons.items()},
    )


def exploration_thirds(plan: SamplerPlan) -> dict[Row, int]:
    """Return the third of the ladder that each env row (actor, split, row) is in; third 0 are the
    ``ceil(N / 3)`` rows that explore least."""
    third = math.ceil(plan.envs / 3)
    return {row: (plan.envs - 1 - ladder_index(plan, *row)) // third for row in _rows(plan)}


def _rows(plan: SamplerPlan) -> list[Row]:
    splits, rows = range(plan.num_splits), range(plan.rows)
    return [(a, s, r) for a in range(plan.num_workers) for s in splits for r in rows]

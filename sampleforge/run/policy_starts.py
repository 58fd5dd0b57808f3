"""Where the policies of a run begin: at their start, from a checkpoint, or frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sampleforge.run.folder.opening import StoredPolicy
from sampleforge.run.folder.resume import ResumeCheckpoint, SaveCheckpoint, frozen_weights
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import PolicyRoles
from sampleforge.topologies.starts import (
    FrozenStart,
    PolicyStart,
    ResumePoint,
    frozen_starts,
    seed_of_policy,
)
from sampleforge.workers.learner_change import LearnerChange


def resume_point(earlier: Mapping[str, Any], seed: int) -> ResumePoint:
    """Return where a run with this ``seed`` begins: at its start, or after an earlier run of the
    folder (``earlier``: the driver's part of its newest checkpoint)."""
    return ResumePoint(
        seed=seed,
        resumes=earlier.get("resumes", -1) + 1,
        env_steps=earlier.get("env_steps", 0),
        wall_s=earlier.get("wall_s", 0.0),
    )


def policy_starts(
    policies: Sequence[StoredPolicy],
    point: ResumePoint,
    hyperparameters: Mapping[str, Mapping[str, Any]],
    schedule: tuple[LearnerChange, ...] | None,
    env_steps_of: Mapping[str, int],
    agent_group: Callable[[str], int],
) -> list[PolicyStart]:
    """Return where each policy that is trained begins. ``point``: where the run begins.
    ``hyperparameters``, ``env_steps_of``: by the policy's id, see `PolicyStart`.
    ``agent_group(id)``: the index of the agent group that it plays."""
    alone = point.env_steps if len(policies) == 1 else 0
    return [
        PolicyStart(
            stored.id,
            dataclasses.replace(
                point,
                seed=seed_of_policy(point.seed, index),
                resume=ResumeCheckpoint(stored.store) if stored.earlier else None,
                replays=stored.stored_replay,
            ),
            SaveCheckpoint(stored.store),
            hyperparameters.get(stored.id, {}),
            schedule,
            env_steps_of.get(stored.id, alone),
            group=agent_group(stored.id),
        )
        for index, stored in enumerate(policies)
    ]


def frozen_policies(roles: PolicyRoles, spec: EnvSpec, point: ResumePoint) -> list[FrozenStart]:
    """Return where the policies that act and are not trained begin, in a run that begins at
    ``point``."""

    def start(index: int, weights: str) -> ResumePoint:
        return dataclasses.replace(
            point,
            seed=seed_of_policy(point.seed, index),
            resume=frozen_weights(weights) if weights else None,
        )

    return frozen_starts(roles, spec, start)

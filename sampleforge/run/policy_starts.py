"""Where the policies of a session begin: at their start, from a checkpoint, or frozen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sampleforge.run.folder.resume import ResumeCheckpoint, SaveCheckpoint, frozen_weights
from sampleforge.topologies.builders import (
    PolicyStart,
    ResumePoint,
    frozen_starts,
    seed_of_policy,
)

if TYPE_CHECKING:
    from sampleforge.run.session import Session


def resume_point(session: Session, seed: int) -> ResumePoint:
    """Return where the run begins: at its start, or after an earlier run of the folder."""
    earlier = session.opened.earlier
    return ResumePoint(
        seed=seed,
        resumes=earlier.get("resumes", -1) + 1,
        env_steps=earlier.get("env_steps", 0),
        wall_s=earlier.get("wall_s", 0.0),
    )


def policy_starts(session: Session, seed: int) -> list[PolicyStart]:
    """Return where each policy that is trained begins."""
    stored_policies, point = session.opened.policies, session.resume_point
    alone = point.env_steps if len(stored_policies) == 1 else 0
    return [
        PolicyStart(
            stored.id,
            dataclasses.replace(
                point,
                seed=seed_of_policy(seed, index),
                resume=ResumeCheckpoint(stored.store) if stored.earlier else None,
                replays=stored.stored_replay,
            ),
            SaveCheckpoint(stored.store),
            session.hyperparameters.get(stored.id, {}),
            session.schedule,
            session.env_steps_of.get(stored.id, alone),
            group=session.agent_group(stored.id),
        )
        for index, stored in enumerate(stored_policies)
    ]


def frozen_policies(session: Session, seed: int) -> dict[str, Any]:
    """Return the argument of a topology for the policies that act and are not trained, which only
    some topologies take: empty if there are none."""

    def start(index: int, weights: str) -> ResumePoint:
        return dataclasses.replace(
            session.resume_point,
            seed=seed_of_policy(seed, index),
            resume=frozen_weights(weights) if weights else None,
        )

    if not session.roles.frozen:
        return {}
    return {"frozen": frozen_starts(session.roles, session.spec, start)}

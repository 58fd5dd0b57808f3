"""Where the policies of a run begin: at their start, at a checkpoint, or frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from sampleforge.algorithms.learning import TRAINED, Learner
from sampleforge.replay.snapshot import ReplayFolder
from sampleforge.spec import EnvSpec
from sampleforge.topologies.policy_roles import OPPONENT, PolicyRoles
from sampleforge.workers.learner import Save
from sampleforge.workers.learner_change import LearnerChange


class Resume(Protocol):
    """The checkpoint from which a run resumes. It can be sent to other processes."""

    def weights(self, model: torch.nn.Module) -> int:
        """Load the weights into ``model``; return their policy version."""

    def learner(self, learner: Learner) -> None:
        """Load the whole state into ``learner``."""

    def plain(self) -> dict[str, Any]:
        """Return the plain values of the learner's state."""


class Initial(Protocol):
    """The weights with which a new run begins. It can be sent to other processes. ``has_actor``:
    the policy's heads are among them."""

    @property
    def has_actor(self) -> bool: ...

    def weights(self, model: torch.nn.Module) -> tuple[list[str], list[str]]:
        """Load the weights into ``model``; return the names of those that stay new, and those that
        it does not have."""

    def learner(self, learner: Learner) -> None:
        """Load what ``learner`` has beside its model."""


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a run begins: its seed, the totals of earlier runs of the folder, their
    checkpoint (``resume``), or the weights that it begins with in the place of new ones
    (``initial``), and the folder in which replays are saved."""

    seed: int
    resumes: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    resume: Resume | None = None
    initial: Initial | None = None
    replays: ReplayFolder | None = None

    @cached_property
    def is_trained(self) -> bool:
        """Whether the policy began with what another run had trained, also in an earlier run of the
        folder."""
        if self.resume is None:
            return self.initial is not None and self.initial.has_actor
        return TRAINED in self.resume.plain().get("tag", {})


@dataclass(frozen=True)
class PolicyStart:
    """The point at which one policy of a run begins. ``id``: of its group; ``start``: with the
    policy's own seed and checkpoint; ``save`` writes a checkpoint, in the learner's process.
    ``hyperparameters``: those in which a new policy differs from the config. ``schedule``: their
    changes during the run (None: there is no schedule). ``env_steps``: the policy's own in earlier
    runs of the folder. ``group``: the index of the agent group that it plays."""

    id: str
    start: ResumePoint
    save: Save
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[LearnerChange, ...] | None = None
    env_steps: int = 0
    group: int = 0


@dataclass(frozen=True)
class FrozenStart:
    """A policy that acts in a run but is not trained. ``start``: with its seed and the weights that
    it acts with, if they are not new; ``snapshots``: the capacity of its pool. ``follows``: the id
    of the trained policy whose newest weights the pool offers, too (None: only snapshots).
    ``group``: the index of the agent group that it plays."""

    id: str
    start: ResumePoint
    snapshots: int = 1
    follows: str | None = None
    group: int = 0


def frozen_starts(
    roles: PolicyRoles, spec: EnvSpec, start: Callable[[int, str], ResumePoint]
) -> list[FrozenStart]:
    """Return the starts of the frozen policies of a run. ``start(index, name)`` returns where the
    policy with this id begins; ``index``: its place among all policies of the run."""
    starts = []
    for index, name in enumerate(roles.frozen, len(roles.trained)):
        group, own = roles.agent_group(name, spec), start(index, name)
        if name == OPPONENT:
            starts.append(FrozenStart(name, own, roles.pool, roles.trained[0], group))
        else:
            starts.append(FrozenStart(name, own, group=group))
    return starts


def seed_of_policy(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th policy of a run. The first one has the run's seed."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint32)[0] >> 1)

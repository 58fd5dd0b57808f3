"""What makes the env vectors of an actor, in the actor's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sampleforge.env.place import Place
from sampleforge.env.registry import make_vector
from sampleforge.env.seeding import row_seeds
from sampleforge.env.tasks import following
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector
from sampleforge.shared.newest import TaskBoard
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.builders import RestartCounts
from sampleforge.topologies.config import AnyConfig
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import ResumePoint

MakeEnv = Callable[[], EnvVector]


@dataclass(frozen=True)
class EnvMaker:
    """Makes the env vector of one ``split`` of an ``actor``. Every env row has its own seed, and
    another one after a restart of the actor. ``tasks``: those that the environments take (None:
    none)."""

    actor: int
    split: int
    config: AnyConfig
    plan: SamplerPlan
    start: ResumePoint
    lives: RestartCounts | None = None
    tasks: TaskBoard | None = None

    def __call__(self) -> EnvVector:
        return self.with_seed(self.start.seed)

    def with_seed(self, seed: int) -> EnvVector:
        """Return the env vector that it would have in a run with this ``seed``."""
        plan, start = self.plan, self.start
        life = 0 if self.lives is None else self.lives.life(self.actor)
        seeds = row_seeds(seed, self.actor, self.split, plan.rows, start.resumes, life)
        place = Place(self.actor, self.split * plan.rows, plan.num_workers)
        return following(self.tasks, make_vector, self.config, plan.rows, seeds, place)


def env_makers(
    actor: int,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    lives: RestartCounts | None = None,
    tasks: TaskBoard | None = None,
) -> list[MakeEnv]:
    """Return what makes the env vectors of an actor's splits; see `EnvMaker`."""
    splits = range(plan.num_splits)
    return [EnvMaker(actor, split, config, plan, start, lives, tasks) for split in splits]


def in_threads(makers: Sequence[MakeEnv], wakeup: Wakeup) -> list[MakeEnv]:
    """Return what makes the same env vectors, each of which steps in a thread of its own and wakes
    its actor after a step."""
    return [partial(ThreadedVector, make, wakeup.set) for make in makers]

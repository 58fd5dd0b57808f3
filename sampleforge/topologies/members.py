"""The members of a population, whose policy groups share the actors: which of the splits each has,
and the channels by which it is changed. A run that follows a schedule is a population of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sampleforge.algorithms.learning import Learner, Tensors
from sampleforge.config import ConfigError
from sampleforge.env.tasks import following
from sampleforge.env.vector import EnvVector
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.member_board import ChangeInbox, MemberBoard
from sampleforge.shared.task_board import TaskBoard
from sampleforge.spec import ENV_PREFIX
from sampleforge.topologies.builders import (
    PolicyStart,
    RestartCounts,
    ResumePoint,
    make_env,
)
from sampleforge.topologies.config import ReplayRunConfig, SlotsRunConfig
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.learner_change import (
    ChangeFollower,
    ChangesOfPopulation,
    ChangesOfSchedule,
    ChangeSource,
)
from sampleforge.workers.member_vector import MemberVector

P = TypeVar("P", bound=SamplerPlan)


@dataclass(frozen=True)
class MemberChannels:
    """The channels of one member. ``start``: where its policy begins; ``count``: see
    `ChangeFollower`; ``inbox`` takes the changes of a population (None: there is a schedule)."""

    start: PolicyStart
    board: MemberBoard
    count: Callable[[], int] | None
    max_policy_lag: int | None
    inbox: ChangeInbox | None

    def follower(self, index: int) -> ChangeFollower:
        """Return what applies the changes to the ``index``-th learner of the member."""
        source: ChangeSource = ChangesOfSchedule(self.start.schedule or (), self.max_policy_lag)
        if self.inbox is not None:
            source = ChangesOfPopulation(self.inbox, self.max_policy_lag)
        return ChangeFollower(source, self.board, self.count, index)

    @property
    def notes(self) -> tuple[str, ...]:
        if self.inbox is None:
            if self.start.schedule:
                return ("hyperparameters follow a schedule",)
            return ("hyperparameters are those that a population has found",)
        nbytes = human_bytes(self.inbox.nbytes)
        return (f"member of a population: {nbytes} of shared memory for the state of a donor",)


def member_channels(
    config: SlotsRunConfig | ReplayRunConfig,
    policy: PolicyStart,
    plan: SamplerPlan,
    new_state: Callable[[], Tensors],
    max_policy_lag: int | None,
) -> MemberChannels | None:
    """Return the channels of a policy that is a member of a population, or follows a schedule; None
    for any other. ``plan``: of one member. ``new_state()``: see `builders.new_state`."""
    if not config.pbt and policy.schedule is None:
        return None
    if plan.num_seats > 1:
        raise ConfigError(
            f"{config.env} has {plan.num_seats} agents; --pbt and --schedule take single-agent "
            "environments only"
        )
    start = policy.start
    shaping = {
        name.removeprefix(ENV_PREFIX): value
        for name, value in policy.hyperparameters.items()
        if name.startswith(ENV_PREFIX)
    }
    streams = plan.num_workers * plan.num_splits
    board = MemberBoard(config.num_learners, streams, start.seed, policy.env_steps, shaping)
    apex = isinstance(config, ReplayRunConfig)
    # What a Q-learner draws from the replay has no env steps of its own.
    count = partial(getattr, board, "sampled") if apex else None
    inbox = ChangeInbox(new_state()) if config.pbt else None
    return MemberChannels(policy, board, count, max_policy_lag, inbox)


def begin_with(learner: Learner, policy: PolicyStart) -> None:
    """Give the learner of a policy that begins the hyperparameters that it begins with."""
    if policy.start.resume is not None or not policy.hyperparameters:
        return
    own = policy.hyperparameters
    shaping = {name: value for name, value in own.items() if name.startswith(ENV_PREFIX)}
    learner.change({name: value for name, value in own.items() if name not in shaping})
    if shaping:
        learner.tag["shaping"] = shaping


def acting_plan(config: SlotsRunConfig | ReplayRunConfig, plan: P, members: int) -> P:
    """Return the plan of the actors, given the ``plan`` of one policy: in a population each actor
    has the splits of all members, one after the other, and split i is that of member i % members.
    """
    if not config.pbt:
        return plan
    return dataclasses.replace(plan, num_splits=plan.num_splits * members)


def member_env_makers(
    actor: int,
    config: SlotsRunConfig | ReplayRunConfig,
    plan: SamplerPlan,
    members: Sequence[MemberChannels],
    lives: RestartCounts | None,
    tasks: TaskBoard | None = None,
) -> list[Callable[[], EnvVector]]:
    """Return the functions that make the env vectors of an actor's splits. ``plan``: of the actors,
    see `acting_plan`. ``tasks``: those that the environments take (None: none). A member's env rows
    have the seeds that they would have in a run with that member alone."""
    own_splits = plan.num_splits // len(members)
    makers: list[Callable[[], EnvVector]] = []
    for split in range(plan.num_splits):
        own, member = divmod(split, len(members))
        channels = members[member]
        start = channels.start.start
        make = partial(_make_segment, actor, config, plan, start, lives, own)
        if tasks is not None:
            make = partial(following, tasks, make)
        makers.append(partial(MemberVector, make, channels.board, actor * own_splits + own))
    return makers


def _make_segment(
    actor: int,
    config: SlotsRunConfig | ReplayRunConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    lives: RestartCounts | None,
    split: int,
    seed: int,
) -> EnvVector:
    return make_env(actor, config, plan, dataclasses.replace(start, seed=seed), lives, split)

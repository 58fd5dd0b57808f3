"""The members of a population, whose policy groups share the actors: which of the splits each has,
and the channels by which it is changed. A run that follows a schedule is a population of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sampleforge.config import ConfigError
from sampleforge.env.vector import Array, EnvVector, Episode, StepOut
from sampleforge.env.wrapper import VectorWrapper
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.member_board import ChangeInbox, MemberBoard
from sampleforge.shared.newest import TaskBoard
from sampleforge.spec import ENV_PREFIX
from sampleforge.topologies.builders import EnvMaker, Lives, MakeEnv, NetworkMaker
from sampleforge.topologies.config import AnyConfig, ReplayRunConfig, SlotsRunConfig
from sampleforge.topologies.learner_maker import new_state
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.learner_change import (
    ChangeFollower,
    ChangesOfPopulation,
    ChangesOfSchedule,
    ChangeSource,
)


class MemberVector(VectorWrapper):
    """The env vector that ``make(seed)`` returns, and another one for each segment of the member.

    When a segment begins, because the member's weights were replaced by copies of another's, the
    environments are made anew, with the seed of the segment. The step that this takes is dropped:
    it is not valid, and truncates the episodes in progress, which are not reported. So a segment
    depends on nothing that earlier weights have done, and its episodes are its own.

    It also counts the member's env steps in ``board``, as those of its ``stream``-th stream, and
    sets the reward-shaping numbers of the environments.
    """

    def __init__(self, make: Callable[[int], EnvVector], board: MemberBoard, stream: int) -> None:
        self._make = make
        self._board = board
        self._stream = stream
        self._shaping_number = 0
        segment = board.segment
        self._segment = segment.number
        super().__init__(make(segment.seed))
        self._shape_rewards()
        self._begins_anew = False

    @property
    def ready(self) -> bool:
        return self._begins_anew or self.inner.ready

    def rescale_actions(self) -> None:
        """Do nothing: the env vectors rescale actions themselves, as they were made."""

    def reset(self, obs: Mapping[str, Array]) -> None:
        self.inner.reset(obs)
        self._board.set_restarted(self._stream, self._segment)

    def send(self, actions: Mapping[str, Array]) -> None:
        self._begins_anew = self._board.segment.number != self._segment
        if self._board.shaping_number != self._shaping_number:
            self._shape_rewards()
        if not self._begins_anew:
            self.inner.send(actions)

    def recv(self, out: StepOut) -> list[Episode]:
        if self._begins_anew:
            self._begin_anew(out)
            return []
        episodes = self.inner.recv(out)
        self._board.add_sampled(self._stream, self.valid_rows)
        return episodes

    def _begin_anew(self, out: StepOut) -> None:
        before, segment = self.inner, self._board.segment
        before.close()
        vector = self._make(segment.seed)
        # These count the faults of all environments of this worker.
        vector.rebuilt, vector.fault = before.rebuilt, before.fault
        vector.guard = before.guard
        self.inner, self._segment = vector, segment.number
        self._shape_rewards()
        vector.reset(out.obs)
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(True)
        out.valid.fill(False)
        out.first.fill(True)
        for name, leaf in (out.final_obs or {}).items():
            leaf[...] = out.obs[name]  # no episode has ended, but its value may be computed
        self._begins_anew = False
        self._board.set_restarted(self._stream, segment.number)

    def _shape_rewards(self) -> None:
        self._shaping_number = self._board.shaping_number
        if self._shaping_number:
            self.inner.set_reward_shaping(self._board.shaping)


P = TypeVar("P", bound=SamplerPlan)


@dataclass(frozen=True)
class MemberChannels:
    """The channels of one member. ``start``: where its policy begins; ``counts_sampled``: see
    `ChangeFollower`; ``inbox`` takes the changes of a population (None: there is a schedule)."""

    start: PolicyStart
    board: MemberBoard
    counts_sampled: bool
    max_policy_lag: int | None
    inbox: ChangeInbox | None

    def follower(self, index: int) -> ChangeFollower:
        """Return what applies the changes to the ``index``-th learner of the member."""
        source: ChangeSource = ChangesOfSchedule(self.start.schedule or (), self.max_policy_lag)
        if self.inbox is not None:
            source = ChangesOfPopulation(self.inbox, self.max_policy_lag)
        return ChangeFollower(source, self.board, index, counts_sampled=self.counts_sampled)

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
    network: NetworkMaker,
) -> MemberChannels | None:
    """Return the channels of a policy that is a member of a population, or follows a schedule; None
    for any other. ``plan``: of one member; ``network`` makes the policy's."""
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
    # What is drawn from a replay has no env steps of its own.
    counts_sampled = isinstance(config, ReplayRunConfig)
    inbox = ChangeInbox(new_state(network, plan, start)) if config.pbt else None
    return MemberChannels(policy, board, counts_sampled, plan.max_policy_lag, inbox)


def acting_plan(config: SlotsRunConfig | ReplayRunConfig, plan: P, members: int) -> P:
    """Return the plan of the actors, given the ``plan`` of one policy: in a population each actor
    has the splits of all members, one after the other, and split i is that of member i % members.
    """
    if not config.pbt:
        return plan
    return dataclasses.replace(plan, num_splits=plan.num_splits * members)


@dataclass(frozen=True)
class MemberEnvMaker:
    """Makes the env vector of a split of a member, whose env rows count its env steps in ``board``
    as those of its ``stream``-th stream."""

    make: EnvMaker
    board: MemberBoard
    stream: int

    def __call__(self) -> MemberVector:
        return MemberVector(self.make.with_seed, self.board, self.stream)


def member_env_makers(
    actor: int,
    config: AnyConfig,
    plan: SamplerPlan,
    members: Sequence[MemberChannels],
    lives: Lives | None,
    tasks: TaskBoard | None = None,
) -> list[MakeEnv]:
    """Return what makes the env vectors of an actor's splits. ``plan``: of the actors, see
    `acting_plan`. ``tasks``: those that the environments take (None: none). A member's env rows
    have the seeds that they would have in a run with that member alone."""
    own_splits = plan.num_splits // len(members)
    makers: list[MakeEnv] = []
    for split in range(plan.num_splits):
        own, member = divmod(split, len(members))
        channels = members[member]
        make = EnvMaker(actor, own, config, plan, channels.start.start, lives, tasks)
        makers.append(MemberEnvMaker(make, channels.board, actor * own_splits + own))
    return makers

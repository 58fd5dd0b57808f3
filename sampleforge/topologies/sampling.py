"""The actors and policy workers of a graph, and their channels; APPO and Ape-X share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sampleforge.config import ConfigError
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import NewPolicy, ResumePoint, env_makers
from sampleforge.topologies.config import AnyConfig, DdppoConfig
from sampleforge.topologies.graph import Edge, GraphBuilder
from sampleforge.topologies.members import MemberChannels, member_env_makers
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.inference import Inference, InlineInference, RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.policy_mapping import (
    FixedPerSplit,
    FixedPerStream,
    PolicyMapping,
    RandomPerRollout,
    RoundRobin,
    only_policy,
)
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class ActorChannels:
    """The channels of the actors, which all policy groups share."""

    episodes: EpisodeQueue
    wakeups: list[Wakeup]
    restart_budget: RestartBudget


@dataclass(frozen=True)
class GroupChannels:
    """The channels of one policy group: between its workers, and to the actors."""

    weights: SharedWeights
    requests: InferenceRequests | None  # with policy workers only
    actor_wakeups: list[Wakeup]
    policy_wakeups: list[Wakeup]
    learner_wakeups: list[Wakeup]
    policy_restarts: RestartBudget
    actor_restarts: RestartBudget

    @property
    def inference_restarts(self) -> RestartBudget:
        """The restarts of the workers that compute actions: the actors, or the policy workers."""
        return self.actor_restarts if self.requests is None else self.policy_restarts


@dataclass(frozen=True)
class ActingGroup:
    """The parts of one policy group that actors and policy workers use. ``new_policy(i)`` returns
    the function that makes the policy of the i-th actor (inline) or policy worker. ``member``: its
    channels as one of the ``members`` of a population."""

    channels: GroupChannels
    exchange: RolloutExchange
    new_policy: Callable[[int], NewPolicy]
    member: MemberChannels | None = None
    members: int = 1

    def port(self, policy: int, actor: int, splits: int) -> PolicyPort:
        """Return the port of an actor with ``splits`` splits to this group, the ``policy``-th of
        the graph."""
        inference: Inference
        if self.channels.requests is None:
            slots, members = self.exchange.slots, self.members
            inference = InlineInference(self.new_policy(actor), slots, splits, actor, members)
        else:
            inference = RemoteInference(self.channels.requests, actor)
        return PolicyPort(policy, self.exchange, inference)


def actor_channels(config: AnyConfig, plan: SamplerPlan) -> ActorChannels:
    """Make the channels that all policy groups of a graph share."""
    return ActorChannels(
        episodes=EpisodeQueue(plan.num_workers),
        wakeups=wakeups(plan.num_workers),
        restart_budget=RestartBudget(plan.num_workers, config.max_worker_restarts),
    )


def group_channels(
    config: AnyConfig,
    plan: SamplerPlan,
    shape: SlotShape,
    weights: SharedWeights,
    actors: ActorChannels,
    learners: int,
) -> GroupChannels:
    """Make the channels of one policy group. ``shape``: of its slots; ``learners``: their
    number."""
    policy_wakeups = wakeups(plan.num_policy_workers)
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_splits, actors.wakeups, policy_wakeups)
    return GroupChannels(
        weights,
        requests,
        actors.wakeups,
        policy_wakeups,
        wakeups(learners),
        RestartBudget(plan.num_policy_workers, config.max_worker_restarts),
        actors.restart_budget,
    )


def choose_mapping(
    policies: int,
    plan: SamplerPlan,
    seed: int,
    *,
    synchronous: bool,
    overlapping: bool,
    population: bool = False,
) -> PolicyMapping:
    """Return the policy mapping for ``policies`` groups, which draws a policy for each rollout.
    Instead, the members of a ``population`` have splits of their own, ``synchronous`` groups act in
    turn, and with ``overlapping`` sequences each stream keeps its policy. Raises ConfigError if a
    policy would have no stream."""
    if policies == 1:
        return only_policy
    if population:
        return FixedPerSplit(policies)
    if overlapping:
        streams = plan.num_workers * plan.num_splits
        if streams < policies:
            raise ConfigError(
                f"{policies} policies with overlapping sequences need {policies} streams, because "
                f"a stream keeps its policy, but there are {plan.num_workers} workers x "
                f"{plan.num_splits} splits = {streams}; raise --num-workers or --num-splits"
            )
        return FixedPerStream(policies, plan.num_splits)
    return RoundRobin(policies) if synchronous else RandomPerRollout(policies, seed)


def add_actors(
    graph: GraphBuilder,
    channels: ActorChannels,
    groups: Sequence[ActingGroup],
    mapping: PolicyMapping,
    config: AnyConfig,
    plan: SamplerPlan,
    start: ResumePoint,
) -> None:
    """Add all actors, each with a port to every one of ``groups``, in the graph's order.

    No actor can wait for a slot that only it could free: every group's exchange has a slot for each
    split of each actor, which is enough if all streams pick the same policy.
    """
    cores = available_cores()
    members = [group.member for group in groups if group.member is not None]
    for index in range(plan.num_workers):
        if members:
            assert not isinstance(config, DdppoConfig)
            envs = member_env_makers(index, config, plan, members, channels.restart_budget)
        else:
            envs = env_makers(index, config, plan, start, channels.restart_budget)
        pinned_to = (cores[index % len(cores)],) if plan.pin_actors else None
        wakeup = channels.wakeups[index]
        make_actor = partial(
            ActorWorker,
            index,
            envs,
            [group.port(i, index, plan.num_splits) for i, group in enumerate(groups)],
            channels.episodes,
            wakeup,
            graph.progress,
            mapping=mapping,
        )
        graph.add(
            "actor",
            make_actor,
            wakeup,
            Placement(pinned_to, config.worker_niceness),
            RestartAlone(channels.restart_budget, index),
            envs,
        )


def add_policy_workers(graph: GraphBuilder, group: ActingGroup, plan: SamplerPlan) -> None:
    """Add the policy workers of one policy group, if it has any."""
    for index, wakeup in enumerate(group.channels.policy_wakeups):
        assert group.channels.requests is not None
        make_policy_worker = partial(
            PolicyWorker,
            index,
            group.new_policy(index),
            group.exchange.slots,
            group.channels.requests,
            wakeup,
            graph.counters,
            device=torch.device(plan.device),
            members=group.members,
        )
        restart = RestartAlone(group.channels.policy_restarts, index)
        graph.add("policy", make_policy_worker, wakeup, restart=restart)


def sampler_edges(plan: SamplerPlan, group: str, learner: str) -> tuple[Edge, ...]:
    """Return the edges of requests, and of the weights that ``learner`` publishes. ``group``: the
    prefix of the group's worker names."""
    actors = f"{plan.num_workers} actors"
    if plan.inference == "inline":
        return (Edge(learner, actors, "weights"),)
    policies = f"{plan.num_policy_workers} {group}policy workers"
    return (
        Edge(actors, policies, "request (split, slot, t)"),
        Edge(policies, actors, "answer; the actions lie in the slot"),
        Edge(learner, policies, "weights"),
    )


def policy_notes(policies: int, *, population: bool = False) -> tuple[str, ...]:
    """Return a note about several policy groups; none for one group."""
    if policies == 1:
        return ()
    if population:
        return (f"a population of {policies}: each actor has the envs below for each member",)
    return (f"{policies} policies, each with its own batches, slots, policy workers and learners",)

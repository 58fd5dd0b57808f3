"""The actors and policy workers of a graph, and their channels; APPO and Ape-X share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.env.seeding import FROZEN_STREAM, row_seeds
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.numa import NumaNode, node_for_group
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.snapshots import SnapshotPool
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import FrozenStart, NewActing, ResumePoint, env_makers
from sampleforge.topologies.config import (
    RanksRunConfig,
    ReplayRunConfig,
    SamplingConfig,
    SlotsRunConfig,
)
from sampleforge.topologies.graph import EVERYWHERE, Edge, FrozenGroup, GraphBuilder
from sampleforge.topologies.members import MemberChannels, member_env_makers
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan, describe_memory
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.frozen import FrozenInference, FrozenPort
from sampleforge.workers.inference import Inference, LocalInference, RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.policy_mapping import PolicyMapping
from sampleforge.workers.stepping import IndependentStepping
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class ActorChannels:
    """The channels of the actors, which all policy groups share. ``recorded``: the queue to the
    recorder (None: nothing is recorded)."""

    episodes: EpisodeQueue
    wakeups: list[Wakeup]
    restart_budget: RestartBudget
    recorded: RolloutQueue | None = None


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
    node: NumaNode | None = None
    """Where the group's workers other than the actors run, with the memory of its slots near to
    them (None: anywhere)."""

    @property
    def inference_restarts(self) -> RestartBudget:
        """The restarts of the workers that compute actions: the actors, or the policy workers."""
        return self.actor_restarts if self.requests is None else self.policy_restarts

    @property
    def placement(self) -> Placement:
        """The cores of the group's workers other than the actors."""
        return EVERYWHERE if self.node is None else Placement(self.node.cores)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note about the place of the group's workers, if they have one."""
        if self.node is None:
            return ()
        return (
            f"learner and slots on NUMA node {self.node.number} ({len(self.node.cores)} cores)",
        )


@dataclass(frozen=True)
class ActingGroup:
    """The parts of one policy group that actors and policy workers use. ``new_acting(i)`` returns
    the function that makes the policy of the i-th actor (inline) or policy worker. ``member``: its
    channels as one of the ``members`` of a population."""

    channels: GroupChannels
    exchange: RolloutExchange
    new_acting: Callable[[int], NewActing]
    member: MemberChannels | None = None
    members: int = 1

    def port(
        self,
        policy: int,
        actor: int,
        streams: int,
        recorded: RolloutQueue | None = None,
        *,
        batched: bool = False,
    ) -> PolicyPort:
        """Return the port of an actor with ``streams`` streams to this group, the ``policy``-th of
        the graph. ``recorded``: the queue to the recorder. ``batched``: streams that wait share a
        forward pass."""
        inference: Inference
        if self.channels.requests is None:
            slots, members = self.exchange.slots, self.members
            # Agents with the same policy share a forward pass.
            together = batched or (slots.shape.spec.num_agents > 1 and not slots.stacks)
            inference = LocalInference(
                self.new_acting(actor), slots, streams, actor, members, together=together
            )
        else:
            inference = RemoteInference(self.channels.requests, actor)
        return PolicyPort(policy, self.exchange, inference, sender(recorded, actor))


def actor_channels(config: SamplingConfig, plan: SamplerPlan) -> ActorChannels:
    """Make the channels that all policy groups of a graph share."""
    return ActorChannels(
        episodes=EpisodeQueue(plan.num_actors),
        wakeups=wakeups(plan.num_actors),
        restart_budget=RestartBudget(plan.num_actors, config.max_worker_restarts),
    )


def group_channels(
    config: SamplingConfig,
    plan: SamplerPlan,
    shape: SlotShape,
    weights: SharedWeights,
    actors: ActorChannels,
    learners: int,
    node: NumaNode | None = None,
) -> GroupChannels:
    """Make the channels of one policy group. ``shape``: of its slots; ``learners``: their number;
    ``node``: see `GroupChannels`."""
    policy_wakeups = wakeups(plan.num_policy_workers)
    requests = None
    if policy_wakeups:
        requests = InferenceRequests(shape, plan.num_streams, actors.wakeups, policy_wakeups)
    return GroupChannels(
        weights,
        requests,
        actors.wakeups,
        policy_wakeups,
        wakeups(learners),
        RestartBudget(plan.num_policy_workers, config.max_worker_restarts),
        actors.restart_budget,
        node,
    )


def group_node(
    index: int, config: SlotsRunConfig | ReplayRunConfig, plan: SamplerPlan, threads: int
) -> NumaNode | None:
    """Return the NUMA node for the workers of the ``index``-th policy group other than the actors,
    which have so many ``threads``; None for anywhere. Learners on GPUs may be anywhere: which node
    is near to a GPU is not known."""
    on_cpu = plan.device == "cpu" and all(name == "cpu" for name in config.learner_devices)
    if not on_cpu or config.serial or not config.set_workers_cpu_affinity:
        return None
    return node_for_group(index, threads)


def add_actors(
    graph: GraphBuilder,
    channels: ActorChannels,
    groups: Sequence[ActingGroup],
    mapping: PolicyMapping,
    config: SamplingConfig,
    plan: SamplerPlan,
    start: ResumePoint,
    frozen: Sequence[FrozenGroup] = (),
) -> None:
    """Add all actors, each with a port to every one of ``groups``, in the graph's order, and to the
    ``frozen`` policies.

    No actor can wait for a slot that only it could free: every group's exchange has a slot for each
    stream of each actor that the group may act in, which is enough if all of them pick it.
    """
    cores = available_cores()
    members = [group.member for group in groups if group.member is not None]
    envs: list[Callable[[], EnvVector]]
    for index in range(plan.num_workers):
        if members:
            assert not isinstance(config, RanksRunConfig)
            envs = member_env_makers(
                index, config, plan, members, channels.restart_budget, graph.hooks.tasks
            )
        else:
            envs = env_makers(
                index, config, plan, start, channels.restart_budget, graph.hooks.tasks
            )
        pinned_to = (cores[index % len(cores)],) if plan.pin_actors else None
        wakeup = channels.wakeups[index]
        if plan.variable:
            envs = [partial(ThreadedVector, make, wakeup.set) for make in envs]
        make_actor = partial(
            ActorWorker,
            index,
            envs,
            [
                *(
                    group.port(i, index, plan.num_streams, channels.recorded, batched=plan.variable)
                    for i, group in enumerate(groups)
                ),
                *(frozen_port(each, len(groups) + i, index) for i, each in enumerate(frozen)),
            ],
            channels.episodes,
            wakeup,
            graph.progress,
            mapping=mapping,
            stepping=IndependentStepping() if plan.variable else None,
            callbacks=graph.hooks.of_worker(index),
        )
        graph.add(
            "actor",
            make_actor,
            wakeup,
            Placement(pinned_to, config.worker_niceness),
            RestartAlone(channels.restart_budget, index),
            envs,
        )


def frozen_port(group: FrozenGroup, policy: int, actor: int) -> FrozenPort:
    """Return the port of an actor to a frozen policy."""
    (seed,) = row_seeds(group.seed, actor, FROZEN_STREAM, 1)
    return FrozenPort(policy, FrozenInference(group.pool, group.new_model, seed))


def frozen_group(
    start: FrozenStart,
    new_model: Callable[[], ActorCritic | QNetwork],
    latest: Mapping[str, SharedWeights],
) -> FrozenGroup:
    """Return a frozen policy with the weights that it begins with. ``latest``: the weights of each
    trained policy, by its id."""
    model = new_model()
    follows = None if start.follows is None else latest[start.follows]
    pool = SnapshotPool(model.state_dict(), start.snapshots, follows)
    if follows is None:
        if start.start.resume is not None:
            start.start.resume.weights(model)
        pool.put(0, model.state_dict(), 0)
    return FrozenGroup(start.id, pool, new_model, start.start.seed)


def add_policy_workers(graph: GraphBuilder, group: ActingGroup, plan: SamplerPlan) -> None:
    """Add the policy workers of one policy group, if it has any."""
    for index, wakeup in enumerate(group.channels.policy_wakeups):
        assert group.channels.requests is not None
        make_policy_worker = partial(
            PolicyWorker,
            index,
            group.new_acting(index),
            group.exchange.slots,
            group.channels.requests,
            wakeup,
            graph.counters,
            device=torch.device(plan.device),
            members=group.members,
        )
        restart = RestartAlone(group.channels.policy_restarts, index)
        placement = group.channels.placement
        graph.add("policy", make_policy_worker, wakeup, placement, restart=restart)


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


def policy_notes(nbytes: Sequence[int], *, population: bool = False) -> tuple[str, ...]:
    """Return a note about several policy groups, with ``nbytes`` of shared memory each for slots or
    replay; none for one group."""
    policies = len(nbytes)
    if policies == 1:
        return ()
    if population:
        return (f"a population of {policies}: each actor has the envs below for each member",)
    return (
        f"{policies} policies, each with its own batches, slots, policy workers and learners",
        f"slots of all policies: {describe_memory(nbytes)} of shared memory",
    )

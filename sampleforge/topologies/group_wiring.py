"""One policy group of a graph, whose actors it shares with others: its memory, its channels, and
how its workers are added. A topology says what its exchange is, and how it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.runtime.numa import memory_on
from sampleforge.shared.counters import Progress
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.builders import (
    ActingMaker,
    NetworkMaker,
    PolicySeeds,
    acting_maker,
    initial_weights,
)
from sampleforge.topologies.channels import (
    ActorChannels,
    GroupChannels,
    group_channels,
    group_node,
)
from sampleforge.topologies.evaluator import AddedEvaluators, Playing, add_evaluators
from sampleforge.topologies.graph import AddedGroup, Edge, GraphBuilder, PolicyGroup
from sampleforge.topologies.learner_group import Learners
from sampleforge.topologies.members import MemberChannels, acting_plan, member_channels
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import SamplerPlan, check_memory_of_groups
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.inference import Inference, LocalInference, RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.stream import PolicyPort

E = TypeVar("E", bound=RolloutExchange)


@dataclass(frozen=True)
class GroupMemory:
    """The memory of the ``index``-th policy group, of which its exchange is made.

    ``new_model`` makes the network of the policy. ``member``: its channels as one of the
    ``members`` of a population. ``progress``: of the run.
    """

    index: int
    policy: PolicyStart
    agents: AgentGroup
    new_model: NetworkMaker
    channels: GroupChannels
    slots: TrajectorySlots
    member: MemberChannels | None
    members: int
    progress: Progress


def group_memories(
    policies: Sequence[PolicyStart],
    agents: Sequence[AgentGroup],
    actors: ActorChannels,
    progress: Progress,
    slot_shape: Callable[[Algorithm, Any, Any, EnvSpec], SlotShape],
) -> Iterator[GroupMemory]:
    """Make the slots, the weights and the channels of each policy group. ``agents``: the agent
    groups; ``slot_shape(algorithm, config, plan, spec)``: of the slots of one; ``progress``: of the
    run. Raises ConfigError if all slots together do not fit into shared memory."""
    check_memory_of_groups([agents[policy.group].plan.shared_bytes for policy in policies])
    for index, policy in enumerate(policies):
        own, start = agents[policy.group], policy.start
        config, plan = own.config, own.plan
        shape = slot_shape(own.algorithm, config, plan, own.spec)
        acting = acting_plan(config, plan, len(policies))
        new_model = own.maker(start.seed)
        weights = initial_weights(new_model, start)
        threads = config.num_learners * plan.learner_threads + plan.servers
        node = group_node(index, config, plan, threads)
        channels = group_channels(config, acting, shape, weights, actors, config.num_learners, node)
        member = member_channels(config, policy, plan, new_model)
        with memory_on(node):
            slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
        members = acting.num_splits // plan.num_splits
        yield GroupMemory(index, policy, own, new_model, channels, slots, member, members, progress)


@dataclass(frozen=True)
class GroupWiring(ABC, Generic[E]):
    """A policy group before its workers are added. ``exchange``: of its experience, between actors
    and learners."""

    memory: GroupMemory
    exchange: E

    @property
    def policy(self) -> PolicyStart:
        return self.memory.policy

    @property
    def config(self) -> Any:
        """The config of its agent group."""
        return self.memory.agents.config

    @property
    def plan(self) -> Any:
        """The plan of its agent group."""
        return self.memory.agents.plan

    @property
    def new_model(self) -> NetworkMaker:
        return self.memory.new_model

    @property
    def channels(self) -> GroupChannels:
        return self.memory.channels

    @property
    def member(self) -> MemberChannels | None:
        """Its channels as a member of a population, if it is one."""
        return self.memory.member

    @property
    def row_exploration(self) -> torch.Tensor | None:
        """The exploration of every agent of every env row, if rows explore differently."""
        return None

    @abstractmethod
    def add_learners(self, graph: GraphBuilder) -> Learners:
        """Add the workers that learn the policy."""

    @abstractmethod
    def edges(self, prefix: str) -> tuple[Edge, ...]:
        """Return its channels. ``prefix``: of the names of its workers."""

    def add(self, graph: GraphBuilder, prefix: str, playing: Playing) -> AddedGroup:
        """Add its workers. ``prefix``: of their names; ``playing``: the policies that play the
        other agent groups in evaluations."""
        self._add_policy_workers(graph)
        learners = self.add_learners(graph)
        evaluation = add_evaluators(
            graph,
            self.config,
            self.channels.weights,
            self.new_model,
            learners.nodes[0].name,
            group=self.policy.group,
            playing=playing,
        )
        group = self.policy_group(learners, evaluation)
        return AddedGroup(group, self.edges(prefix), evaluation.edges, learners.notes)

    def policy_group(self, learners: Learners, evaluation: AddedEvaluators) -> PolicyGroup:
        """Return it as a part of the graph."""
        return PolicyGroup(
            self.policy.id,
            learners.nodes,
            self.exchange,
            self.channels.weights,
            self.plan.max_policy_lag,
            snapshot=learners.snapshot,
            evaluations=evaluation.results,
            resources=learners.resources,
            member=self.member,
        )

    def new_acting(self, index: int) -> ActingMaker:
        """Return what makes the policy of the ``index``-th actor (inline) or policy worker."""
        board = None if self.member is None else self.member.board
        channels, start = self.channels, self.policy.start
        seeds = PolicySeeds(index, start, channels.inference_restarts.life, board)
        return acting_maker(
            self.new_model,
            channels.weights,
            self.plan,
            seeds,
            self.memory.progress,
            self.row_exploration,
        )

    def port(
        self, number: int, actor: int, plan: SamplerPlan, recorded: RolloutQueue | None
    ) -> PolicyPort:
        """Return the port of an actor to this group, the ``number``-th of the graph. ``plan``: of
        the actors; ``recorded``: the queue to the recorder (None: nothing is recorded)."""
        inference: Inference
        if self.channels.requests is None:
            slots = self.exchange.slots
            # Agents with the same policy share a forward pass, and so do streams that wait.
            together = plan.variable or (slots.shape.spec.num_agents > 1 and not slots.stacks)
            inference = LocalInference(
                self.new_acting(actor),
                slots,
                plan.num_streams,
                actor,
                self.memory.members,
                together=together,
            )
        else:
            inference = RemoteInference(self.channels.requests, actor)
        return PolicyPort(number, self.exchange, inference, sender(recorded, actor))

    def _add_policy_workers(self, graph: GraphBuilder) -> None:
        """Add its policy workers, if it has any."""
        channels = self.channels
        for index, wakeup in enumerate(channels.policy_wakeups):
            assert channels.requests is not None
            row = graph.new_row()
            worker = PolicyWorker(
                index,
                self.new_acting(index),
                self.exchange.slots,
                channels.requests,
                wakeup,
                graph.counters,
                row,
                torch.device(self.plan.device),
                self.memory.members,
            )
            restart = RestartAlone(channels.policy_restarts, index)
            graph.add("policy", worker, row, wakeup, channels.placement, restart)


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

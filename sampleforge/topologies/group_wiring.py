"""One policy group of a graph, whose actors it shares with others: its memory, its channels, and
how its workers are added. A topology says what its exchange is, and how it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from sampleforge.rollouts.exchange import RolloutExchange
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.runtime.numa import memory_on
from sampleforge.shared.counters import Progress, RestartBudget
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.topologies.builders import (
    ActingMaker,
    AgentGroup,
    PolicySeeds,
    acting_maker,
    initial_weights,
)
from sampleforge.topologies.devices import group_node
from sampleforge.topologies.evaluator import Playing, Results, add_evaluators
from sampleforge.topologies.graph import AddedGroup, Edge, GraphBuilder, PolicyGroup
from sampleforge.topologies.learner_group import Learners
from sampleforge.topologies.members import acting_plan, member_channels
from sampleforge.topologies.placement import placement_beside, policy_placement, policy_spin
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.policy import PolicyWorker

E = TypeVar("E", bound=RolloutExchange)


@dataclass(frozen=True)
class ActorChannels:
    """The channels of the actors, which all policy groups share."""

    episodes: EpisodeQueue
    wakeups: list[Wakeup]
    restart_budget: RestartBudget


class GroupWiring(ABC, Generic[E]):
    """A policy group before its workers are added: its weights, its slots, and the channels between
    its workers and to the actors.

    ``policy``: its start, the ``index``-th of so many ``policies``. ``agents``: its agent group;
    ``actors``: the channels of the actors; ``progress``: of the run. ``exchange``: of its
    experience, between actors and learners. ``node``: where its workers other than the actors run,
    with the memory of its slots near to them (None: anywhere). ``member``: its channels as one of
    the ``members`` of a population.
    """

    exchange: E

    def __init__(
        self,
        index: int,
        policy: PolicyStart,
        agents: AgentGroup,
        actors: ActorChannels,
        progress: Progress,
        policies: int,
    ) -> None:
        config, plan = agents.config, agents.plan
        self.index = index
        self.policy = policy
        self.agents = agents
        self.config: Any = config
        self.plan: Any = plan
        self.actors = actors
        self.progress = progress
        self.new_model = agents.maker(policy.start.seed)
        self.weights = initial_weights(self.new_model, policy.start)
        self.member = member_channels(config, policy, plan, self.new_model)
        acting = acting_plan(config, plan, policies)
        self.members = acting.num_splits // plan.num_splits
        self.learner_wakeups = wakeups(config.num_learners)
        self.policy_wakeups = wakeups(plan.num_policy_workers)
        self.policy_restarts = RestartBudget(plan.num_policy_workers, config.max_worker_restarts)
        shape, streams = self.slot_shape(), acting.num_streams
        self.requests: InferenceRequests | None = None
        if self.policy_wakeups:
            self.requests = InferenceRequests(shape, streams, actors.wakeups, self.policy_wakeups)
        self.node = group_node(index, config, plan)
        with memory_on(self.node):
            self.slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
            self.exchange = self.new_exchange()

    @staticmethod
    @abstractmethod
    def notes(run: AgentGroup, policies: int) -> tuple[str, ...]:
        """Return notes about a run with so many ``policies``. ``run``: its first agent group."""

    @abstractmethod
    def slot_shape(self) -> SlotShape:
        """Return the shape of its slots."""

    @abstractmethod
    def new_exchange(self) -> E:
        """Make the exchange of its slots."""

    @abstractmethod
    def add_learners(self, graph: GraphBuilder) -> Learners:
        """Add the workers that learn the policy."""

    @abstractmethod
    def edges(self, prefix: str) -> tuple[Edge, ...]:
        """Return its channels. ``prefix``: of the names of its workers."""

    @property
    def synchronous(self) -> bool:
        """Whether sampling and learning take turns."""
        return False

    @property
    def overlapping(self) -> bool:
        """Whether rollouts begin with the end of the one before."""
        return False

    @property
    def row_exploration(self) -> torch.Tensor | None:
        """The exploration of every agent of every env row, if rows explore differently."""
        return None

    def add_sources(self, graph: GraphBuilder) -> None:
        """Add the workers beside the actors that fill its slots, if there are any."""
        return

    def sampler_edges(self, prefix: str, learner: str) -> tuple[Edge, ...]:
        """Return the channels of requests, and of the weights that ``learner`` publishes."""
        actors = f"{self.plan.num_workers} actors"
        if self.plan.inference == "inline":
            return (Edge(learner, actors, "weights"),)
        policies = f"{self.plan.num_policy_workers} {prefix}policy workers"
        return (
            Edge(actors, policies, "request (split, slot, t)"),
            Edge(policies, actors, "answer; the actions lie in the slot"),
            Edge(learner, policies, "weights"),
        )

    def add(self, graph: GraphBuilder, prefix: str, playing: Playing) -> AddedGroup:
        """Add its workers. ``prefix``: of their names; ``playing``: the policies that play the
        other agent groups in evaluations."""
        self._add_policy_workers(graph)
        learners = self.add_learners(graph)
        results, evaluation = add_evaluators(
            graph,
            self.config,
            self.weights,
            self.new_model,
            learners.nodes[0].name,
            group=self.policy.group,
            playing=playing,
            cores=placement_beside(self.plan).cores,
        )
        group = self.policy_group(learners, results)
        return AddedGroup(group, self.edges(prefix), evaluation, learners.notes)

    def policy_group(self, learners: Learners, results: Results) -> PolicyGroup:
        """Return it as a part of the graph."""
        return PolicyGroup(
            self.policy.id,
            learners.nodes,
            self.exchange,
            self.weights,
            self.plan.max_policy_lag,
            synchronous=self.synchronous,
            snapshot=learners.snapshot,
            evaluations=results,
            resources=learners.resources,
            member=self.member,
        )

    def new_acting(self, index: int) -> ActingMaker:
        """Return what makes the policy of the ``index``-th actor (inline) or policy worker."""
        board = None if self.member is None else self.member.board
        restarts = self.actors.restart_budget if self.requests is None else self.policy_restarts
        seeds = PolicySeeds(index, self.policy.start, restarts.life, board)
        return acting_maker(
            self.new_model, self.weights, self.plan, seeds, self.progress, self.row_exploration
        )

    def _add_policy_workers(self, graph: GraphBuilder) -> None:
        """Add its policy workers, if it has any."""
        for index, wakeup in enumerate(self.policy_wakeups):
            assert self.requests is not None
            post = graph.post(wakeup, spin=policy_spin(self.plan))
            of_run = self.index * len(self.policy_wakeups) + index
            placement = policy_placement(self.plan, of_run, self.node)
            worker = PolicyWorker(
                index,
                self.new_acting(index),
                self.slots,
                self.requests,
                post,
                torch.device(self.plan.device),
                self.members,
            )
            restart = RestartAlone(self.policy_restarts, index)
            graph.add("policy", worker, post, placement, restart)

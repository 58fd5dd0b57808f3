"""Replay: actors -> replay shards -> learner; priorities back; weights out.

As Ape-X has them: Horgan et al. 2018, arXiv 1803.00933.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.channels import actor_channels
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.evaluator import AddedEvaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.group_wiring import (
    GroupMemory,
    GroupWiring,
    group_memories,
    sampler_edges,
)
from sampleforge.topologies.ladder import exploration, ladder_of, of_rows
from sampleforge.topologies.learner_group import (
    Learners,
    add_learners,
    add_sink,
    learner_makers,
)
from sampleforge.topologies.policy_groups import PolicyGroups
from sampleforge.topologies.replay.channels import ReplayChannels, replay_channels
from sampleforge.topologies.replay.datasets import add_dataset_actors, dataset_edges
from sampleforge.topologies.replay.learners import sample_batches
from sampleforge.topologies.replay.notes import run_notes
from sampleforge.topologies.replay.plan import ReplayPlan, stored_shape
from sampleforge.topologies.replay.saving import replay_notes, saves
from sampleforge.topologies.replay.shards import add_shards
from sampleforge.topologies.starts import FrozenStart, PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.learner import NoLearner


def wire_replay(
    algorithm: Algorithm,
    config: ReplayRunConfig,
    plan: ReplayPlan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    frozen: Sequence[FrozenStart] = (),
    others: Sequence[AgentGroup] = (),
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the actors, which all ``policies`` share, and for each policy a group with policy
    workers, replay shards and a learner of its own. The actors also act with the
    ``frozen`` policies. ``others``: the agent groups of a multi-agent environment beside the first
    one, which is that of ``config``, ``plan`` and ``spec``. ``hooks``: of the run's callbacks.
    Nothing runs yet."""
    graph = GraphBuilder(config, start, hooks)
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    actors = actor_channels(config, plan)
    memories = group_memories(policies, agents, actors, graph.progress, stored_shape)
    groups = [replay_group(memory) for memory in memories]
    if config.datasets:
        (only,) = groups  # a config with data has one policy
        add_dataset_actors(graph, actors, only)
    wired, notes = PolicyGroups(agents, groups, frozen), run_notes(config, plan, spec)
    return wired.wire(graph, actors, notes, overlapping=config.sequences is not None)


def replay_group(memory: GroupMemory) -> ReplayGroup:
    """Return a policy group with its replay. With a ladder of exploration, its env rows have the
    steps."""
    algorithm, config, plan = memory.agents.algorithm, memory.agents.config, memory.agents.plan
    replay, ladder = replay_channels(memory), None
    if plan.envs and algorithm.exploration is not None:
        ladder = ladder_of(algorithm, config, plan)
    return ReplayGroup(memory, replay.exchange, replay, ladder)


@dataclass(frozen=True)
class ReplayGroup(GroupWiring[ReplayExchange]):
    """A policy whose rollouts stay in replay shards, from which its learners draw samples.
    ``ladder``: the exploration of its env rows, the largest first (None: all explore alike)."""

    replay: ReplayChannels
    ladder: torch.Tensor | None

    @property
    def row_exploration(self) -> torch.Tensor | None:
        return None if self.ladder is None else of_rows(self.ladder, self.plan)

    def add_learners(self, graph: GraphBuilder) -> Learners:
        """Add the shards, and the learner, or several that have equal parts of each sample."""
        config, plan, channels, start = self.config, self.plan, self.channels, self.policy.start
        add_shards(graph, self.replay, config, plan, start, channels.placement)
        notes = replay_notes(config, plan, self.exchange.slots, self.replay.archive, start)
        if config.sampler_only:
            wakeup = channels.learner_wakeups[0]
            return add_sink(graph, NoLearner(wakeup), wakeup).with_notes(notes)
        batches = sample_batches(config, plan, start, self.replay, channels.learner_wakeups)
        learners = add_learners(
            graph,
            config,
            channels,
            learner_makers(self.new_model, plan, self.policy, batches),
            self.member,
            publish_interval=max(1, config.weights_refresh_interval // 2),
            extra_bytes=8 * plan.batch_size // config.num_learners,  # errors, as float64
        )
        return learners.with_notes(notes)

    def policy_group(self, learners: Learners, evaluation: AddedEvaluators) -> PolicyGroup:
        ladder, memory, replay = self.ladder, self.memory, self.replay
        return dataclasses.replace(
            super().policy_group(learners, evaluation),
            exploration=(
                None
                if ladder is None
                else exploration(ladder, self.plan, memory.index, memory.members)
            ),
            archive=replay.archive if saves(self.config) else None,
            histograms=replay.histograms,
        )

    def edges(self, prefix: str) -> tuple[Edge, ...]:
        return _edges(self.config, self.plan, prefix)


def _edges(config: ReplayRunConfig, plan: ReplayPlan, group: str) -> tuple[Edge, ...]:
    """Return the edges of one policy group. ``group``: the prefix of its worker names."""
    actors, shards = f"{plan.num_workers} actors", f"{len(plan.stored_slots)} {group}replay shards"
    live = bool(plan.num_workers)
    several = config.num_learners > 1
    first = f"{group}learner 0" if several else f"{group}learner"
    learners = f"{config.num_learners} {group}learners" if several else first
    what = "transitions" if config.sequences is None else "sequences"
    rollout = f"rollout of {plan.rollout} steps x {plan.rows} rows, in its slot"
    return (
        *(_actor_edges(plan, actors, shards, rollout) if live else ()),
        *dataset_edges(config, plan, shards),
        Edge(first, shards, f"request for a sample ({config.prefetch_batches} in flight)"),
        Edge(shards, learners, f"{plan.batch_size} drawn {what}"),
        Edge(first, shards, "their TD errors"),
        *([Edge(learners, learners, "gradients, summed; TD errors")] if several else []),
        *(sampler_edges(plan, group, first) if live else ()),
    )


def _actor_edges(plan: ReplayPlan, actors: str, shards: str, rollout: str) -> tuple[Edge, ...]:
    """Return the edges between actors and replay shards."""
    return (
        Edge(actors, shards, f"{rollout}, with first priorities"),
        Edge(shards, actors, f"lease of the oldest slot ({plan.leases} per actor and shard)"),
    )

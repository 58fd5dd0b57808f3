"""Replay: actors -> replay shards -> learner; priorities back; weights out.

As Ape-X has them: Horgan et al. 2018, arXiv 1803.00933.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.replay.exchange import ReplayExchange
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.devices import describe_learners
from sampleforge.topologies.evaluator import AddedEvaluators
from sampleforge.topologies.graph import Edge, Exploration, Graph, GraphBuilder, PolicyGroup, Row
from sampleforge.topologies.group_wiring import GroupWiring, sampler_edges
from sampleforge.topologies.learner_group import (
    Learners,
    add_learners,
    add_sink,
    learner_makers,
    placement_on,
)
from sampleforge.topologies.policy_groups import wire_groups
from sampleforge.topologies.replay.channels import (
    add_shards,
    replay_channels,
    replay_notes,
    saves,
)
from sampleforge.topologies.replay.datasets import add_dataset_actors, dataset_edges
from sampleforge.topologies.replay.learners import sample_batches
from sampleforge.topologies.replay.plan import ReplayPlan, stored_shape
from sampleforge.topologies.sampler_plan import SamplerPlan
from sampleforge.topologies.starts import FrozenStart, PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.learner import NoLearner
from sampleforge.workers.replay import ReplayChannels


def _sequence_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    sequences = config.sequences
    if sequences is None:
        return ()
    return (
        f"{config.model.core} core: sequences of {sequences.length} steps, one every "
        f"{sequences.stride}, of which {sequences.burn_in} are burn-in; a rollout keeps "
        f"{sequences.overlap} steps of the one before",
    )


def _clip_notes(config: ReplayRunConfig) -> tuple[str, ...]:
    clip = config.reward_clip
    if clip is None:
        return ()
    if clip == "sign":
        return ("rewards are reduced to their sign for learning (--reward-clip sign)",)
    return (f"rewards are clipped to +-{clip:g} for learning (--reward-clip None: not at all)",)


def run_notes(config: ReplayRunConfig, plan: ReplayPlan, spec: EnvSpec) -> tuple[str, ...]:
    """Return notes about a run with a replay."""
    compression = (
        f"of these, {human_bytes(sum(plan.ring_bytes))} for frames, which are compressed: enough "
        f"if they shrink {config.replay_compression_ratio:g} times, else the oldest are evicted"
    )
    return (
        *([plan.describe_envs()] if plan.envs else []),
        f"replay of {plan.capacity} transitions in {sum(plan.stored_slots)} slots: "
        f"{human_bytes(plan.slot_bytes + plan.frame_bytes)} of shared memory when full, "
        f"{human_bytes(plan.tree_bytes)} for priorities",
        *([compression] if plan.ring_bytes else []),
        *_sequence_notes(config),
        *_clip_notes(config),
        f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)",
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )


def ladder_of(algorithm: Algorithm, config: Any, plan: SamplerPlan) -> torch.Tensor:
    """Return the exploration of the env rows, the largest first, float32 [plan.envs]."""
    assert algorithm.exploration is not None
    return algorithm.exploration(config, plan.envs)


def ladder_index(plan: SamplerPlan, actor: int, split: int, row: int) -> int:
    """Return the index of an env row on the ladder of exploration, 0 for the row
    that explores most. The rows
    of each actor are spread over the whole ladder."""
    return (split * plan.rows + row) * plan.num_workers + actor


def of_rows(ladder: torch.Tensor, plan: SamplerPlan) -> torch.Tensor:
    """Return the step of the ``ladder`` [plan.envs] of every agent of every env row of the run, in
    the order of actors, splits, seats, rows. All agents of an env row have the same."""
    actors, splits, rows = range(plan.num_workers), range(plan.num_splits), range(plan.rows)
    order = [(a, s, r) for a in actors for s in splits for _ in range(plan.num_seats) for r in rows]
    return ladder[[ladder_index(plan, *row) for row in order]]


def exploration(
    ladder: torch.Tensor, plan: SamplerPlan, member: int = 0, members: int = 1
) -> Exploration:
    """Return the exploration of each env row of a policy, given the ``ladder`` [plan.envs]: of all
    env rows, or of those in the splits of one of several ``members`` of a population, see
    `acting_plan`."""

    def acting(row: Row) -> Row:
        return row[0], row[1] * members + member if members > 1 else row[1], row[2]

    steps = ladder.tolist()
    epsilons = {row: steps[ladder_index(plan, *row)] for row in _rows(plan)}
    thirds = exploration_thirds(plan)
    return Exploration(
        {acting(row): third for row, third in thirds.items()},
        {acting(row): epsilon for row, epsilon in epsilons.items()},
    )


def exploration_thirds(plan: SamplerPlan) -> dict[Row, int]:
    """Return the third of the ladder that each env row (actor, split, row) is in; third 0 are the
    ``ceil(N / 3)`` rows that explore least."""
    third = math.ceil(plan.envs / 3)
    return {row: (plan.envs - 1 - ladder_index(plan, *row)) // third for row in _rows(plan)}


def _rows(plan: SamplerPlan) -> list[Row]:
    splits, rows = range(plan.num_splits), range(plan.rows)
    return [(a, s, r) for a in range(plan.num_workers) for s in splits for r in rows]


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
    """Wire the groups of ``policies``, see `wire_groups`. ``others``: the agent groups of a
    multi-agent environment beside the first one, which is that of ``config``, ``plan`` and
    ``spec``."""
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    notes = run_notes(config, plan, spec)
    return wire_groups(ReplayGroup, agents, notes, start, policies, frozen, hooks)


class ReplayGroup(GroupWiring[ReplayExchange]):
    """A policy whose rollouts stay in replay shards, from which its learners draw samples.
    ``replay``: the channels of the shards."""

    replay: ReplayChannels

    def slot_shape(self) -> SlotShape:
        return stored_shape(self.agents.algorithm, self.config, self.plan, self.agents.spec)

    def new_exchange(self) -> ReplayExchange:
        self.replay = replay_channels(self)
        return self.replay.exchange

    @property
    def overlapping(self) -> bool:
        return self.config.sequences is not None

    @property
    def ladder(self) -> torch.Tensor | None:
        """The exploration of its env rows, the largest first (None: all explore alike)."""
        algorithm = self.agents.algorithm
        if not self.plan.envs or algorithm.exploration is None:
            return None
        return ladder_of(algorithm, self.config, self.plan)

    @property
    def row_exploration(self) -> torch.Tensor | None:
        ladder = self.ladder
        return None if ladder is None else of_rows(ladder, self.plan)

    def add_sources(self, graph: GraphBuilder) -> None:
        if self.config.datasets:
            add_dataset_actors(graph, self)

    def add_learners(self, graph: GraphBuilder) -> Learners:
        """Add the shards, and the learner, or several that have equal parts of each sample."""
        config, plan, start, wakeups = (
            self.config,
            self.plan,
            self.policy.start,
            self.learner_wakeups,
        )
        add_shards(graph, self.replay, config, plan, start, placement_on(self.node))
        notes = replay_notes(config, plan, self.slots, self.replay.archive, start)
        if config.sampler_only:
            return add_sink(graph, NoLearner, wakeups[0]).with_notes(notes)
        batches = sample_batches(config, plan, start, self.replay, wakeups)
        learners = add_learners(
            graph,
            config,
            learner_makers(self.new_model, plan, self.policy, batches),
            self.weights,
            wakeups,
            self.member,
            self.node,
            publish_interval=max(1, config.weights_refresh_interval // 2),
            extra_bytes=8 * plan.batch_size // config.num_learners,  # errors, as float64
        )
        return learners.with_notes(notes)

    def policy_group(self, learners: Learners, evaluation: AddedEvaluators) -> PolicyGroup:
        ladder, replay = self.ladder, self.replay
        explored = None
        if ladder is not None:
            explored = exploration(ladder, self.plan, self.index, self.members)
        return dataclasses.replace(
            super().policy_group(learners, evaluation),
            exploration=explored,
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

"""Replay: actors -> replay shards -> learner; priorities back; weights out.

As Ape-X has them: Horgan et al. 2018, arXiv 1803.00933.
"""

from __future__ import annotations

import dataclasses

import torch

from sampleforge.replay.exchange import ReplayExchange
from sampleforge.rollouts.slots import SlotShape
from sampleforge.topologies.builders import AgentGroup
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.evaluator import Results
from sampleforge.topologies.graph import Edge, GraphBuilder, PolicyGroup
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.learner_group import Learners, add_learners, add_sink
from sampleforge.topologies.learner_maker import learner_makers
from sampleforge.topologies.replay.channels import add_shards, replay_channels, replay_notes, saves
from sampleforge.topologies.replay.datasets import add_dataset_actors
from sampleforge.topologies.replay.ladder import exploration, ladder_of, of_rows
from sampleforge.topologies.replay.learners import sample_batches
from sampleforge.topologies.replay.plan import ReplayPlan, run_notes, stored_shape
from sampleforge.workers.replay import ReplayChannels


class ReplayGroup(GroupWiring[ReplayExchange]):
    """A policy whose rollouts stay in replay shards, from which its learners draw samples.
    ``replay``: the channels of the shards."""

    replay: ReplayChannels

    @staticmethod
    def notes(run: AgentGroup, policies: int) -> tuple[str, ...]:
        return run_notes(run.config, run.plan, run.spec)

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
        add_shards(graph, self, self.replay)
        notes = replay_notes(config, plan, self.slots, self.replay.archive, start)
        if config.sampler_only:
            return add_sink(graph, wakeups[0]).with_notes(notes)
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

    def policy_group(self, learners: Learners, results: Results) -> PolicyGroup:
        ladder, replay = self.ladder, self.replay
        explored = None
        if ladder is not None:
            explored = exploration(ladder, self.plan, self.index, self.members)
        return dataclasses.replace(
            super().policy_group(learners, results),
            exploration=explored,
            archive=replay.archive if saves(self.config) else None,
            histograms=replay.histograms,
            refused=self._refused(),
        )

    def _refused(self) -> str:
        """Return why the replay that the run has saved is not restored; empty if it is, or if there
        is none."""
        saved, where = self.policy.start.replays, self.replay.archive.where
        return "" if saved is None or saved.saved is None else where.missing

    def edges(self, prefix: str) -> tuple[Edge, ...]:
        config, plan = self.config, self.plan
        shards = f"{len(plan.stored_slots)} {prefix}replay shards"
        live, several = bool(plan.num_workers), config.num_learners > 1
        first = f"{prefix}learner 0" if several else f"{prefix}learner"
        learners = f"{config.num_learners} {prefix}learners" if several else first
        what = "transitions" if config.sequences is None else "sequences"
        return (
            *(_actor_edges(plan, shards) if live else ()),
            *dataset_edges(config, plan, shards),
            Edge(first, shards, f"request for a sample ({config.prefetch_batches} in flight)"),
            Edge(shards, learners, f"{plan.batch_size} drawn {what}"),
            Edge(first, shards, "their TD errors"),
            *([Edge(learners, learners, "gradients, summed; TD errors")] if several else []),
            *(self.sampler_edges(prefix, first) if live else ()),
        )


def _actor_edges(plan: ReplayPlan, shards: str) -> tuple[Edge, ...]:
    """Return the edges between actors and replay shards."""
    actors = f"{plan.num_workers} actors"
    rollout = f"rollout of {plan.rollout} steps x {plan.rows} rows, in its slot"
    return (
        Edge(actors, shards, f"{rollout}, with first priorities"),
        Edge(shards, actors, f"lease of the oldest slot ({plan.leases} per actor and shard)"),
    )


def dataset_edges(config: ReplayRunConfig, plan: ReplayPlan, shards: str) -> tuple[Edge, ...]:
    """Return the edges of the datasets to the replay ``shards``."""
    rollout = f"rollout of {plan.rollout} steps x {plan.rows} rows"
    return tuple(
        Edge(
            f"dataset {number}",
            shards,
            f"{rollout} from {source.name}, {source.weight:.0%} of the experience",
        )
        for number, source in enumerate(config.datasets)
    )

"""Slots: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.channels import actor_channels
from sampleforge.topologies.config import SlotsRunConfig
from sampleforge.topologies.devices import describe_learners, learner_devices
from sampleforge.topologies.evaluator import AddedEvaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, PolicyGroup
from sampleforge.topologies.group_wiring import GroupWiring, group_memories, sampler_edges
from sampleforge.topologies.learner_group import (
    Learners,
    add_learners,
    add_sink,
    learner_makers,
)
from sampleforge.topologies.policy_groups import PolicyGroups
from sampleforge.topologies.sampler_plan import (
    Plan,
)
from sampleforge.topologies.slots_plan import gathers_ahead, slot_shape
from sampleforge.topologies.starts import FrozenStart, PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.learner import ExperienceSink


def wire_slots(
    algorithm: Algorithm,
    config: SlotsRunConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    frozen: Sequence[FrozenStart] = (),
    others: Sequence[AgentGroup] = (),
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the actors, which all ``policies`` share, and for each policy a group with policy
    workers and a learner of its own. The actors also act with the
    ``frozen`` policies. ``others``: the agent groups of a multi-agent environment beside the first
    one, which is that of ``config``, ``plan`` and ``spec``. ``hooks``: of the run's callbacks.
    Nothing runs yet."""
    graph = GraphBuilder(config, start, hooks)
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    actors = actor_channels(config, plan)
    memories = group_memories(policies, agents, actors, graph.progress, slot_shape)
    groups = [
        SlotsGroup(
            memory,
            SlotExchange(
                memory.slots, memory.channels.actor_wakeups, memory.channels.learner_wakeups
            ),
        )
        for memory in memories
    ]
    notes = _notes(config, plan, spec, len(policies))
    wired = PolicyGroups(agents, groups, frozen)
    return wired.wire(graph, actors, notes, synchronous=plan.synchronous)


class SlotsGroup(GroupWiring[SlotExchange]):
    """A policy whose learners take batches of complete slots, and give the slots back."""

    def add_learners(self, graph: GraphBuilder) -> Learners:
        config, plan, channels = self.config, self.plan, self.channels
        if config.sampler_only:
            wakeup = channels.learner_wakeups[0]
            return add_sink(graph, ExperienceSink(self.exchange, wakeup), wakeup)
        batches = [
            SlotBatches(
                self.exchange,
                plan.slots_per_batch // config.num_learners,
                torch.device(device),
                synchronous=plan.synchronous,
                prefetch=gathers_ahead(plan, serial=config.serial),
                learner=index,
            )
            for index, device in enumerate(learner_devices(config, plan.device))
        ]
        makers = learner_makers(self.new_model, plan, self.policy, batches)
        return add_learners(graph, config, channels, makers, self.member)

    def policy_group(self, learners: Learners, evaluation: AddedEvaluators) -> PolicyGroup:
        group = super().policy_group(learners, evaluation)
        return dataclasses.replace(group, synchronous=self.plan.synchronous)

    def edges(self, prefix: str) -> tuple[Edge, ...]:
        return _edges(self.config, self.plan, prefix)


def _edges(config: SlotsRunConfig, plan: Plan, group: str) -> tuple[Edge, ...]:
    """Return the edges of one policy group. ``group``: the prefix of its worker names."""
    actors = f"{plan.num_workers} actors"
    several = config.num_learners > 1
    learners = f"{config.num_learners} {group}learners" if several else f"{group}learner"
    rollout = f"slot of {plan.rollout} steps x {plan.rows} rows"
    together = "gradients, summed at every minibatch; counts and moments"
    return (
        Edge(actors, learners, f"ready {rollout} ({plan.slots_per_batch} a batch)"),
        Edge(learners, actors, f"free slot ({plan.slots} in circulation)"),
        *([Edge(learners, learners, together)] if several else []),
        *sampler_edges(plan, group, f"{group}learner 0" if several else learners),
    )


def _notes(config: SlotsRunConfig, plan: Plan, spec: EnvSpec, policies: int) -> tuple[str, ...]:
    """Return notes about a run with so many ``policies``."""
    ahead = gathers_ahead(plan, serial=config.serial)
    one = policies == 1 or config.pbt
    return (
        plan.describe_envs(),
        f"batch {plan.batch_size} env steps, "
        f"{'synchronous' if plan.synchronous else 'asynchronous'}",
        *plan.lag.notes,
        *([f"slots {human_bytes(plan.slot_bytes)} of shared memory"] if one else []),
        f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)"
        f"{', beside one that gathers the next batch' if ahead else ''}",
        *(["the model's passes are compiled: the start takes longer"] if config.compile else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )

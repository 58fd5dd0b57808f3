"""Slots: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

import torch

from sampleforge.rollouts.batch import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import SlotShape
from sampleforge.runtime.machine import human_bytes
from sampleforge.topologies.builders import AgentGroup
from sampleforge.topologies.devices import describe_learners, learner_devices
from sampleforge.topologies.graph import Edge, GraphBuilder
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.learner_group import Learners, add_learners, add_sink
from sampleforge.topologies.learner_maker import learner_makers
from sampleforge.topologies.slots.plan import gathers_ahead, slot_shape


class SlotsGroup(GroupWiring[SlotExchange]):
    """A policy whose learners take batches of complete slots, and give the slots back."""

    @staticmethod
    def notes(run: AgentGroup, policies: int) -> tuple[str, ...]:
        config, plan = run.config, run.plan
        ahead = gathers_ahead(plan, serial=config.serial)
        one = policies == 1 or config.pbt
        compiled = "the model's passes are compiled: the start takes longer"
        return (
            plan.describe_envs(),
            f"batch {plan.batch_size} env steps, "
            f"{'synchronous' if plan.synchronous else 'asynchronous'}",
            *plan.lag.notes,
            *([f"slots {human_bytes(plan.slot_bytes)} of shared memory"] if one else []),
            f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)"
            f"{', beside one that gathers the next batch' if ahead else ''}",
            *([compiled] if config.compile else []),
            *plan.reasons,
            *([f"protocol: {run.spec.protocol}"] if run.spec.protocol else []),
        )

    def slot_shape(self) -> SlotShape:
        return slot_shape(self.agents.algorithm, self.config, self.plan, self.agents.spec)

    def new_exchange(self) -> SlotExchange:
        return SlotExchange(self.slots, self.actors.wakeups, self.learner_wakeups)

    @property
    def synchronous(self) -> bool:
        return bool(self.plan.synchronous)

    def add_learners(self, graph: GraphBuilder) -> Learners:
        config, plan, wakeups = self.config, self.plan, self.learner_wakeups
        if config.sampler_only:
            return add_sink(graph, wakeups[0], self.exchange)
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
        return add_learners(graph, config, makers, self.weights, wakeups, self.member, self.node)

    def edges(self, prefix: str) -> tuple[Edge, ...]:
        config, plan = self.config, self.plan
        actors = f"{plan.num_workers} actors"
        several = config.num_learners > 1
        learners = f"{config.num_learners} {prefix}learners" if several else f"{prefix}learner"
        rollout = f"slot of {plan.rollout} steps x {plan.rows} rows"
        together = "gradients, summed at every minibatch; counts and moments"
        return (
            Edge(actors, learners, f"ready {rollout} ({plan.slots_per_batch} a batch)"),
            Edge(learners, actors, f"free slot ({plan.slots} in circulation)"),
            *([Edge(learners, learners, together)] if several else []),
            *self.sampler_edges(prefix, f"{prefix}learner 0" if several else learners),
        )

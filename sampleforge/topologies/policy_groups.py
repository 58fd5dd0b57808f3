"""Policy groups that share their actors: the wiring that slots and replay have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sampleforge.topologies.actors import add_actors, frozen_group
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.channels import ActorChannels
from sampleforge.topologies.datasets import add_recorder, rollout_queue, with_recording
from sampleforge.topologies.evaluator import first_of_each_group
from sampleforge.topologies.graph import AddedGroup, Graph, GraphBuilder
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.mapping import seat_mapping
from sampleforge.topologies.members import acting_plan
from sampleforge.topologies.sampler_plan import describe_memory
from sampleforge.topologies.starts import FrozenStart


@dataclass(frozen=True)
class PolicyGroups:
    """The policy groups of a run: the ``groups`` of the policies that are trained, and the policies
    that are ``frozen``. ``agents``: the agent groups, of which the first has the run's config and
    plan."""

    agents: Sequence[AgentGroup]
    groups: Sequence[GroupWiring[Any]]
    frozen: Sequence[FrozenStart]

    def wire(
        self,
        graph: GraphBuilder,
        actors: ActorChannels,
        notes: Sequence[str],
        *,
        synchronous: bool = False,
        overlapping: bool = False,
    ) -> Graph:
        """Add the actors and the workers of all groups, and return the graph.

        ``synchronous``: sampling and learning take turns; ``overlapping``: rollouts begin with the
        end of the one before.
        """
        config, plan, spec = self.agents[0].config, self.agents[0].plan, self.agents[0].spec
        groups = self.groups
        mapping = seat_mapping(
            spec,
            [group.policy for group in groups],
            self.frozen,
            plan,
            graph.start.seed,
            synchronous=synchronous,
            overlapping=overlapping,
            population=config.pbt,
            function=config.policy_mapping,
        )
        weights = {group.policy.id: group.channels.weights for group in groups}
        frozen = [
            frozen_group(each, self.agents[each.group].maker(each.start.seed), weights)
            for each in self.frozen
        ]
        acting = acting_plan(config, plan, len(groups))
        shape = groups[0].exchange.slots.shape
        queue = rollout_queue(config, spec, shape, plan.num_workers, acting.num_streams)
        actors = dataclasses.replace(actors, recorded=queue)
        add_actors(graph, actors, groups, mapping, config, acting, frozen)
        recording = add_recorder(graph, config, queue, len(groups))
        playing = first_of_each_group(
            [(group.policy.group, group.new_model, group.channels.weights) for group in groups],
            [
                (each.group, made.new_model, made.pool.weights(0))
                for each, made in zip(self.frozen, frozen, strict=True)
            ],
        )
        by_id = {group.policy.id: group for group in groups}

        def add(builder: GraphBuilder, group_id: str, prefix: str) -> AddedGroup:
            return by_id[group_id].add(builder, prefix, playing)

        notes = [*self._notes(), *notes]
        wired = graph.build_groups(list(by_id), add, notes, actors.episodes, frozen)
        return with_recording(wired, recording)

    def _notes(self) -> tuple[str, ...]:
        """Return notes about several policy groups; none for one group."""
        policies = len(self.groups)
        if policies == 1:
            return ()
        if self.agents[0].config.pbt:
            return (f"a population of {policies}: each actor has the envs below for each member",)
        nbytes = [group.plan.shared_bytes for group in self.groups]
        return (
            f"{policies} policies, each with its own batches, slots, policy workers and learners",
            f"slots of all policies: {describe_memory(nbytes)} of shared memory",
        )

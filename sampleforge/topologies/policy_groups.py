"""Policy groups that share their actors: the wiring that APPO and Ape-X have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.builders import FrozenStart, NetworkMaker, PolicyStart, ResumePoint
from sampleforge.topologies.evaluator import Playing, first_of_each_group
from sampleforge.topologies.graph import AddedGroup, Graph, GraphBuilder
from sampleforge.topologies.mapping import seat_mapping
from sampleforge.topologies.members import acting_plan
from sampleforge.topologies.recording import add_recorder, rollout_queue, with_recording
from sampleforge.topologies.sampling import (
    ActingGroup,
    ActorChannels,
    GroupChannels,
    add_actors,
    frozen_group,
)


@dataclass(frozen=True)
class GroupParts:
    """The parts of one policy group that exist before its workers are added."""

    policy: PolicyStart
    agents: AgentGroup
    new_model: NetworkMaker
    acting: ActingGroup

    @property
    def channels(self) -> GroupChannels:
        return self.acting.channels


P = TypeVar("P", bound=GroupParts)


@dataclass(frozen=True)
class PolicyGroups(Generic[P]):
    """The policy groups of a run: the ``parts`` of those that are trained, and the policies that
    are ``frozen``. ``agents``: the agent groups, of which the first has the run's config and plan.
    """

    agents: Sequence[AgentGroup]
    parts: Sequence[P]
    frozen: Sequence[FrozenStart]

    def wire(
        self,
        graph: GraphBuilder,
        actors: ActorChannels,
        start: ResumePoint,
        add_group: Callable[[GraphBuilder, P, str, Playing], AddedGroup],
        notes: Sequence[str],
        *,
        synchronous: bool = False,
        overlapping: bool = False,
    ) -> Graph:
        """Add the actors and the workers of all groups, and return the graph.

        ``add_group(graph, parts, prefix, playing)`` adds the workers of one policy group, with
        ``prefix`` before their names, where ``playing`` are the policies that play the other agent
        groups in evaluations. ``synchronous``: sampling and learning take turns; ``overlapping``:
        rollouts begin with the end of the one before.
        """
        config, plan, spec = self.agents[0].config, self.agents[0].plan, self.agents[0].spec
        policies = [part.policy for part in self.parts]
        mapping = seat_mapping(
            spec,
            policies,
            self.frozen,
            plan,
            start.seed,
            synchronous=synchronous,
            overlapping=overlapping,
            population=config.pbt,
            function=config.policy_mapping,
        )
        weights = {part.policy.id: part.channels.weights for part in self.parts}
        frozen = [
            frozen_group(each, self.agents[each.group].maker(each.start.seed), weights)
            for each in self.frozen
        ]
        acting = acting_plan(config, plan, len(policies))
        groups = [part.acting for part in self.parts]
        shape = groups[0].exchange.slots.shape
        queue = rollout_queue(config, spec, shape, plan.num_workers, acting.num_streams)
        actors = dataclasses.replace(actors, recorded=queue)
        add_actors(graph, actors, groups, mapping, config, acting, start, frozen)
        recording = add_recorder(graph, config, queue, len(policies))
        playing = first_of_each_group(
            [(part.policy.group, part.new_model, part.channels.weights) for part in self.parts],
            [
                (each.group, made.new_model, made.pool.weights(0))
                for each, made in zip(self.frozen, frozen, strict=True)
            ],
        )
        by_id = {part.policy.id: part for part in self.parts}

        def add(builder: GraphBuilder, group_id: str, prefix: str) -> AddedGroup:
            return add_group(builder, by_id[group_id], prefix, playing)

        wired = graph.build_groups(list(by_id), add, notes, actors.episodes, frozen)
        return with_recording(wired, recording)

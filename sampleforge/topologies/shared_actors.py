"""Policy groups that share their actors: the wiring that slots and replay have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.records import EpisodeQueue
from sampleforge.shared.wakeup import wakeups
from sampleforge.spec import EnvSpec
from sampleforge.topologies.actors import add_actors, frozen_group
from sampleforge.topologies.builders import AgentGroup
from sampleforge.topologies.evaluator import first_of_each_group
from sampleforge.topologies.graph import (
    AddedGroup,
    Edge,
    FrozenGroup,
    Graph,
    GraphBuilder,
    Recording,
    group_prefix,
)
from sampleforge.topologies.group_wiring import ActorChannels, GroupWiring
from sampleforge.topologies.mapping import seat_mapping
from sampleforge.topologies.members import acting_plan
from sampleforge.topologies.placement import placement_beside
from sampleforge.topologies.recorder import add_recorder, rollout_queue
from sampleforge.topologies.sampler_plan import check_memory_of_groups, describe_memory
from sampleforge.topologies.starts import FrozenStart, PolicyStart, ResumePoint
from sampleforge.workers.callback import NO_HOOKS, RunHooks


def wire_groups(
    kind: type[GroupWiring[Any]],
    algorithm: Algorithm,
    config: Any,
    plan: Any,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    frozen: Sequence[FrozenStart] = (),
    others: Sequence[AgentGroup] = (),
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the actors, which all ``policies`` share, and for each policy a group of this ``kind``,
    with policy workers and learners of its own. The actors also act with the ``frozen`` policies.
    Nothing runs yet.

    ``others``: the agent groups of a multi-agent environment beside the first one, which is that of
    ``config``, ``plan`` and ``spec``. ``hooks``: of the run's callbacks. Raises ConfigError if the
    slots of all policies together do not fit into shared memory."""
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    nbytes = [agents[policy.group].plan.shared_bytes for policy in policies]
    check_memory_of_groups(nbytes)
    graph = GraphBuilder(config, start, hooks)
    actors = ActorChannels(
        EpisodeQueue(plan.num_actors),
        wakeups(plan.num_actors),
        RestartBudget(plan.num_actors, config.max_worker_restarts),
    )
    groups = [
        kind(index, policy, agents[policy.group], actors, graph.progress, len(policies))
        for index, policy in enumerate(policies)
    ]
    weights = {group.policy.id: group.weights for group in groups}
    acting = [
        frozen_group(each, agents[each.group].maker(each.start.seed), weights) for each in frozen
    ]
    recording = _add_sampling(graph, agents[0], actors, groups, frozen, acting)
    playing = first_of_each_group(
        [(group.policy.group, group.new_model.to_be_loaded, group.weights) for group in groups],
        [
            (each.group, made.new_model, made.pool.weights(0))
            for each, made in zip(frozen, acting, strict=True)
        ],
    )
    added = {}
    for group in groups:
        prefix = group_prefix(group.policy.id, len(groups))
        added[prefix] = group.add(graph.of_group(prefix), prefix, playing)
    return graph.build(
        groups=[each.group for each in added.values()],
        edges=_edges(graph, list(added.values())),
        notes=[
            *_notes_of_several(nbytes, population=config.pbt),
            *kind.notes(agents[0], len(policies)),
            *(prefix + note for prefix, each in added.items() for note in each.notes),
        ],
        episodes=actors.episodes,
        frozen=acting,
        recording=recording,
    )


def _add_sampling(
    graph: GraphBuilder,
    run: AgentGroup,
    actors: ActorChannels,
    groups: Sequence[GroupWiring[Any]],
    starts: Sequence[FrozenStart],
    frozen: Sequence[FrozenGroup],
) -> Recording | None:
    """Add the workers that fill slots, and the recorder of what they sample, if there is one.
    ``run``: the first agent group, which has the run's config and plan; ``starts``: of the
    ``frozen`` policies."""
    config, plan = run.config, run.plan
    mapping = seat_mapping(
        run.spec,
        [group.policy for group in groups],
        starts,
        plan,
        graph.start.seed,
        synchronous=groups[0].synchronous,
        overlapping=groups[0].overlapping,
        population=config.pbt,
        function=config.policy_mapping,
    )
    acting, shape = acting_plan(config, plan, len(groups)), groups[0].slots.shape
    queue = rollout_queue(config, run.spec, shape, plan.num_workers, acting.num_streams)
    for group in groups:
        group.add_sources(graph)
    add_actors(graph, actors, groups, mapping, config, acting, frozen, queue)
    return add_recorder(graph, config, queue, len(groups), placement_beside(plan).cores)


def _edges(graph: GraphBuilder, added: Sequence[AddedGroup]) -> list[Edge]:
    """Return the channels of all groups, then those of the actors and of the evaluators."""
    actors = len(graph.having("actor"))
    return [
        *(edge for each in added for edge in each.edges),
        *([Edge(f"{actors} actors", "driver", "finished episodes")] if actors else []),
        *(edge for each in added for edge in each.evaluation),
    ]


def _notes_of_several(nbytes: Sequence[int], *, population: bool) -> tuple[str, ...]:
    """Return notes about several policy groups, whose slots have ``nbytes`` each; none for one
    group."""
    policies = len(nbytes)
    if policies == 1:
        return ()
    if population:
        return (f"a population of {policies}: each actor has the envs below for each member",)
    return (
        f"{policies} policies, each with its own batches, slots, policy workers and learners",
        f"slots of all policies: {describe_memory(nbytes)} of shared memory",
    )

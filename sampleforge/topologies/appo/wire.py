"""APPO: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.spec import EnvSpec
from sampleforge.topologies.appo.plan import gathers_ahead
from sampleforge.topologies.builders import (
    NewModel,
    NewPolicy,
    PolicyStart,
    ResumePoint,
    first_weights,
    make_learner,
    model_maker,
    policy_maker,
)
from sampleforge.topologies.config import AppoConfig
from sampleforge.topologies.evaluator import add_evaluator, evaluators
from sampleforge.topologies.graph import (
    Edge,
    Graph,
    GraphBuilder,
    Node,
    PolicyGroup,
    group_prefix,
)
from sampleforge.topologies.ppo_defaults import reason
from sampleforge.topologies.sampler_plan import Plan, check_memory_of_groups
from sampleforge.topologies.sampling import (
    ActingGroup,
    ActorChannels,
    Channels,
    actor_channels,
    add_actors,
    add_policy_workers,
    channels,
    choose_mapping,
    policies_in_words,
    sampler_edges,
)
from sampleforge.workers.learner import ExperienceSink, LearnerWorker, Save


def appo(
    config: AppoConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
) -> Graph:
    """Wire the actors, which all ``policies`` share, and for each policy a group with policy
    workers and a learner of its own. Nothing runs yet."""
    count = len(policies)
    check_memory_of_groups(plan.slot_bytes, count)
    in_group = plan.num_policy_workers + 1 + evaluators(config)
    graph = GraphBuilder("appo", plan.num_workers + count * in_group, config, start)
    actors = actor_channels(config, plan)
    parts = [_group_parts(policy, actors, config, plan, spec) for policy in policies]
    mapping = choose_mapping(
        count, plan, start.seed, synchronous=plan.synchronous, overlapping=False
    )
    acting = [part.acting for part in parts]
    add_actors(graph, actors, acting, mapping, config, plan, start)
    groups: list[PolicyGroup] = []
    edges: list[Edge] = []
    episodes = Edge(f"{plan.num_workers} actors", "driver", "finished episodes")
    evaluations: list[Edge] = []
    for part in parts:
        prefix = group_prefix(part.policy.id, count)
        group, evaluation = _add_group(graph.of_group(prefix), part, config, plan, start)
        groups.append(group)
        edges += _edges(plan, prefix)
        evaluations += evaluation
    return graph.build(
        groups=groups,
        edges=[*edges, episodes, *evaluations],
        notes=_notes(config, plan, spec, count),
        episodes=actors.episodes,
    )


@dataclass(frozen=True)
class GroupParts:
    """What one policy group is made from, before its workers are added."""

    policy: PolicyStart
    new_model: NewModel
    exchange: SlotExchange
    acting: ActingGroup

    @property
    def channels(self) -> Channels:
        return self.acting.channels


def _group_parts(
    policy: PolicyStart, actors: ActorChannels, config: AppoConfig, plan: Plan, spec: EnvSpec
) -> GroupParts:
    """Make the slots, the exchange, the weights and the channels of one policy group."""
    start = policy.start
    new_model = model_maker(config, spec, start.seed)
    shape = SlotShape(plan.rollout, plan.rows, spec, config.model.state_size)
    weights = first_weights(new_model, start)
    joined = channels(plan, shape, weights, actors)
    slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
    exchange = SlotExchange(slots, joined.actor_wakeups, joined.learner_wakeup)

    def new_policy(index: int) -> NewPolicy:
        spec_if = spec if config.compile else None
        noise = config.noise_correlation
        return policy_maker(index, new_model, weights, plan, start, spec_if, noise)

    acting = ActingGroup(joined, exchange, new_policy)
    return GroupParts(policy, new_model, exchange, acting)


def _add_group(
    graph: GraphBuilder, parts: GroupParts, config: AppoConfig, plan: Plan, start: ResumePoint
) -> tuple[PolicyGroup, tuple[Edge, ...]]:
    """Add the workers of one policy group. ``start``: of the run. Return the group, and the arrows
    of its evaluator."""
    policy, new_model, weights = parts.policy, parts.new_model, parts.channels.weights
    add_policy_workers(graph, parts.acting, plan)
    learner = _add_learner(
        graph, parts.channels, parts.exchange, config, plan, policy.start, new_model, policy.save
    )
    evaluation = add_evaluator(graph, config, weights, new_model, start, learner.name)
    group = PolicyGroup(
        policy.id,
        (learner,),
        parts.exchange,
        weights,
        plan.lag.limit,
        plan.synchronous,
        evaluations=evaluation.results,
    )
    return group, evaluation.edges


def _add_learner(
    graph: GraphBuilder,
    channels: Channels,
    exchange: SlotExchange,
    config: AppoConfig,
    plan: Plan,
    start: ResumePoint,
    new_model: NewModel,
    save: Save,
) -> Node:
    wakeup = channels.learner_wakeup
    if config.sampler_only:
        return graph.add("learner", lambda counter_row: ExperienceSink(exchange, wakeup), wakeup)
    make_worker = partial(
        LearnerWorker,
        partial(make_learner, new_model, config, plan, start, compiled=config.compile),
        exchange,
        plan.slots_per_batch,
        channels.weights,
        graph.progress,
        save,
        wakeup,
        synchronous=plan.synchronous,
        device=torch.device(plan.device),
        threads=plan.learner_threads,
        prefetch=gathers_ahead(plan, serial=config.serial),
    )
    return graph.add("learner", make_worker, wakeup, in_checkpoint=True)


def _edges(plan: Plan, group: str) -> tuple[Edge, ...]:
    """Return the arrows of one policy group. ``group``: the beginning of its workers' names."""
    actors = f"{plan.num_workers} actors"
    rollout = f"slot of {plan.rollout} steps x {plan.rows} rows"
    return (
        Edge(actors, f"{group}learner", f"ready {rollout} ({plan.slots_per_batch} a batch)"),
        Edge(f"{group}learner", actors, f"free slot ({plan.slots} in circulation)"),
        *sampler_edges(plan, group),
    )


def _notes(config: AppoConfig, plan: Plan, spec: EnvSpec, policies: int) -> tuple[str, ...]:
    ahead = gathers_ahead(plan, serial=config.serial)
    return (
        reason(config, spec),
        *policies_in_words(policies),
        plan.envs_in_words(),
        f"batch {plan.batch_size} env steps, "
        f"{'synchronous' if plan.synchronous else 'asynchronous'}",
        *plan.lag.notes,
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"learner on {plan.device}, {plan.learner_threads} thread(s)"
        f"{', beside one that gathers the next batch' if ahead else ''}",
        *(["the model's passes are compiled: the start takes longer"] if config.compile else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )

"""Slots: actors -> ready slots -> learner -> weights -> actors, or their policy workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.numa import memory_on
from sampleforge.shared.counters import Progress
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.spec import EnvSpec
from sampleforge.topologies.agent_groups import AgentGroup
from sampleforge.topologies.builders import (
    FrozenStart,
    NewActing,
    PolicySeeds,
    PolicyStart,
    ResumePoint,
    acting_maker,
    gradient_bytes,
    initial_weights,
    new_state,
)
from sampleforge.topologies.config import SlotsRunConfig
from sampleforge.topologies.evaluator import Playing, add_evaluators, num_evaluators
from sampleforge.topologies.graph import (
    AddedGroup,
    Edge,
    Graph,
    GraphBuilder,
    PolicyGroup,
)
from sampleforge.topologies.learner_group import (
    LearnerMaker,
    Learners,
    add_learners,
    add_only_learner,
    compile_or_capture,
)
from sampleforge.topologies.members import acting_plan, member_channels
from sampleforge.topologies.policy_groups import GroupParts, PolicyGroups
from sampleforge.topologies.recording import num_recorders
from sampleforge.topologies.rendezvous import describe_learners, learner_devices, local_rendezvous
from sampleforge.topologies.sampler_plan import Plan, check_memory_of_groups
from sampleforge.topologies.sampling import (
    ActingGroup,
    ActorChannels,
    actor_channels,
    add_policy_workers,
    group_channels,
    group_node,
    policy_notes,
    sampler_edges,
)
from sampleforge.topologies.slots.plan import gathers_ahead, slot_shape
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.learner import (
    ExperienceSink,
)


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
    count = len(policies)
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    nbytes = [agents[policy.group].plan.slot_bytes for policy in policies]
    check_memory_of_groups(nbytes)
    in_group = plan.num_policy_workers + config.num_learners + num_evaluators(config)
    workers = plan.num_workers + num_recorders(config) + count * in_group
    graph = GraphBuilder(config.algo, workers, config, start, hooks)
    actors = actor_channels(config, plan)
    parts = [
        _group_parts(index, policy, actors, agents[policy.group], count, graph.progress)
        for index, policy in enumerate(policies)
    ]
    return PolicyGroups(agents, parts, frozen).wire(
        graph,
        actors,
        start,
        partial(_add_group, start=start),
        _notes(config, plan, spec, nbytes),
        synchronous=plan.synchronous,
    )


@dataclass(frozen=True)
class SlotsParts(GroupParts):
    """The parts of one policy group that exist before its workers are added."""

    exchange: SlotExchange


def _group_parts(
    index: int,
    policy: PolicyStart,
    actors: ActorChannels,
    agents: AgentGroup,
    members: int,
    progress: Progress,
) -> SlotsParts:
    """Make the slots, the exchange, the weights and the channels of the ``index``-th policy group.
    ``members``: of the population, if there is one; ``progress``: of the run."""
    start = policy.start
    config, plan, spec = agents.config, agents.plan, agents.spec
    acting = acting_plan(config, plan, members)
    new_model = agents.maker(start.seed)
    shape = slot_shape(agents.algorithm, config, plan, spec)
    weights = initial_weights(new_model, start)
    threads = config.num_learners * plan.learner_threads + plan.num_policy_workers
    node = group_node(index, config, plan, threads)
    channels = group_channels(config, acting, shape, weights, actors, config.num_learners, node)
    member = member_channels(
        config, policy, plan, partial(new_state, new_model, plan, start), plan.lag.limit
    )
    with memory_on(node):
        slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
    exchange = SlotExchange(slots, channels.actor_wakeups, channels.learner_wakeups)

    def new_acting(index: int) -> NewActing:
        board = None if member is None else member.board
        seeds = PolicySeeds(index, start, channels.inference_restarts, board)
        return acting_maker(new_model, weights, plan, seeds, progress)

    count = acting.num_splits // plan.num_splits
    group = ActingGroup(channels, exchange, new_acting, member, count)
    return SlotsParts(policy, agents, new_model, group, exchange)


def _add_group(
    graph: GraphBuilder,
    parts: SlotsParts,
    prefix: str,
    playing: Playing,
    start: ResumePoint,
) -> AddedGroup:
    """Add the workers of one policy group. ``prefix``: of their names; ``playing``: the policies
    that play the other agent groups in evaluations; ``start``: of the run."""
    config, plan = parts.agents.config, parts.agents.plan
    new_model, weights = parts.new_model, parts.channels.weights
    add_policy_workers(graph, parts.acting, plan)
    learners = _add_learners(graph, parts, config, plan)
    evaluation = add_evaluators(
        graph,
        config,
        weights,
        new_model,
        start,
        learners.nodes[0].name,
        group=parts.policy.group,
        playing=playing,
    )
    group = PolicyGroup(
        parts.policy.id,
        learners.nodes,
        parts.exchange,
        weights,
        plan.lag.limit,
        plan.synchronous,
        learners.snapshot,
        evaluations=evaluation.results,
        resources=learners.resources,
        member=parts.acting.member,
    )
    return AddedGroup(group, _edges(config, plan, prefix), evaluation.edges, learners.notes)


def _add_learners(
    graph: GraphBuilder, parts: SlotsParts, config: SlotsRunConfig, plan: Plan
) -> Learners:
    """Add the learners of one policy group."""
    channels = parts.channels
    wakeup = channels.learner_wakeups[0]
    if config.sampler_only:
        sink = partial(_sink, parts.exchange, wakeup)
        return Learners((graph.add("learner", sink, wakeup),))
    devices = learner_devices(config, plan.device)
    batches = [
        SlotBatches(
            parts.exchange,
            plan.slots_per_batch // config.num_learners,
            torch.device(device),
            synchronous=plan.synchronous,
            prefetch=gathers_ahead(plan, serial=config.serial),
            learner=index,
        )
        for index, device in enumerate(devices)
    ]
    prepare = partial(compile_or_capture, config)
    maker = LearnerMaker(plan, parts.new_model, parts.policy, batches, prepare=prepare)
    member = parts.acting.member
    if config.serial and member is None:
        return add_only_learner(graph, channels, maker)
    rendezvous = None
    if config.num_learners > 1:
        rendezvous = local_rendezvous(
            devices,
            config.learner_timeout,
            gradient_bytes(parts.new_model, plan, parts.policy.start),
            "learner",
        )
    snapshot = StateSnapshot(new_state(parts.new_model, plan, parts.policy.start))
    return add_learners(graph, config, channels, maker, snapshot, rendezvous, member)


def _sink(exchange: SlotExchange, wakeup: Wakeup, counter_row: int) -> ExperienceSink:
    return ExperienceSink(exchange, wakeup)


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


def _notes(
    config: SlotsRunConfig, plan: Plan, spec: EnvSpec, nbytes: Sequence[int]
) -> tuple[str, ...]:
    """Return notes about the run. ``nbytes``: of the slots of each policy."""
    ahead, one = gathers_ahead(plan, serial=config.serial), len(nbytes) == 1
    return (
        *policy_notes(nbytes, population=config.pbt),
        plan.describe_envs(),
        f"batch {plan.batch_size} env steps, "
        f"{'synchronous' if plan.synchronous else 'asynchronous'}",
        *plan.lag.notes,
        *([f"slots {human_bytes(plan.slot_bytes)} of shared memory"] if one or config.pbt else []),
        f"{describe_learners(config, plan.device)}, {plan.learner_threads} thread(s)"
        f"{', beside one that gathers the next batch' if ahead else ''}",
        *(["the model's passes are compiled: the start takes longer"] if config.compile else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )

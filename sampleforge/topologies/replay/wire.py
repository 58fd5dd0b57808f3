"""Replay: actors -> replay shards -> learner; priorities back; weights out.

As Ape-X has them: Horgan et al. 2018, arXiv 1803.00933.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.models.normaliser import normalised_leaves
from sampleforge.replay.compressed import CompressedFrames, FrameStore
from sampleforge.replay.exchange import ReplayExchange, SampleRelay, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.observation_stats import Shapes
from sampleforge.replay.shard import Prioritisation, ReplayShard
from sampleforge.replay.shard_memory import ShardMemory, ShardSlots
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.numa import memory_on
from sampleforge.shared.counters import Progress
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import wakeups
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
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.evaluator import Playing, add_evaluators, num_evaluators
from sampleforge.topologies.graph import (
    AddedGroup,
    Edge,
    Exploration,
    Graph,
    GraphBuilder,
    PolicyGroup,
)
from sampleforge.topologies.ladder import exploration, ladder_of, of_rows
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
from sampleforge.topologies.rendezvous import (
    describe_learners,
    learner_devices,
    local_rendezvous,
)
from sampleforge.topologies.replay.channels import ReplayChannels
from sampleforge.topologies.replay.datasets import add_dataset_actors, dataset_edges, shares_of
from sampleforge.topologies.replay.learners import sample_batches
from sampleforge.topologies.replay.plan import ReplayPlan, slot_shape
from sampleforge.topologies.replay.saving import make_archive, replay_notes, saves
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.sampler_plan import check_memory_of_groups
from sampleforge.topologies.sampling import (
    ActingGroup,
    ActorChannels,
    GroupChannels,
    actor_channels,
    add_policy_workers,
    group_channels,
    group_node,
    policy_notes,
    sampler_edges,
)
from sampleforge.workers.callback import NO_HOOKS, RunHooks
from sampleforge.workers.learner import NoLearner
from sampleforge.workers.replay import ReplayWorker
from sampleforge.workers.worker import Placement


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
    count, shards = len(policies), len(plan.stored_slots)
    agents = [AgentGroup(algorithm, config, plan, spec), *others]
    nbytes = [agents[policy.group].plan.shared_bytes for policy in policies]
    check_memory_of_groups(nbytes)
    in_group = plan.num_policy_workers + shards + config.num_learners + num_evaluators(config)
    workers = plan.num_actors + num_recorders(config) + count * in_group
    graph = GraphBuilder(config.algo, workers, config, start, hooks)
    actors = actor_channels(config, plan)
    parts = [
        _group_parts(index, policy, actors, agents[policy.group], count, graph.progress)
        for index, policy in enumerate(policies)
    ]
    if config.datasets:
        (only,) = parts  # a config with data has one policy
        add_dataset_actors(graph, actors, only.replay.exchange, only, config, plan)
    return PolicyGroups(agents, parts, frozen).wire(
        graph,
        actors,
        start,
        partial(_add_group, start=start),
        [*policy_notes(nbytes, population=config.pbt), *_notes(config, plan, spec)],
        overlapping=config.sequences is not None,
    )


@dataclass(frozen=True)
class ReplayParts(GroupParts):
    """The parts of one policy group that exist before its workers are added."""

    replay: ReplayChannels
    exploration: Exploration | None


def _group_parts(
    index: int,
    policy: PolicyStart,
    actors: ActorChannels,
    agents: AgentGroup,
    members: int,
    progress: Progress,
) -> ReplayParts:
    """Make the replay, the weights and the channels of the ``index``-th policy group. ``members``:
    of the population, if there is one; ``progress``: of the run."""
    start = policy.start
    config, plan, spec = agents.config, agents.plan, agents.spec
    acting = acting_plan(config, plan, members)
    new_network = agents.maker(start.seed)
    weights = initial_weights(new_network, start)
    shape = slot_shape(agents.algorithm, config, plan, spec, plan.frame_buffers)
    others = plan.num_policy_workers + len(plan.stored_slots)
    node = group_node(index, config, plan, config.num_learners * plan.learner_threads + others)
    channels = group_channels(config, acting, shape, weights, actors, config.num_learners, node)
    member = member_channels(
        config, policy, plan, partial(new_state, new_network, plan, start), None
    )
    frames = None
    with memory_on(node):
        slots = TrajectorySlots(plan.slots, shape, debug=config.debug)
        if plan.ring_bytes:
            frames = CompressedFrames(shape, plan.shard_slots, plan.ring_bytes)
        replay = _replay_channels(agents.algorithm, config, plan, slots, frames, channels, start)
    ladder = None
    if plan.envs and agents.algorithm.exploration is not None:
        ladder = ladder_of(agents.algorithm, config, plan)

    def new_acting(index: int) -> NewActing:
        board = None if member is None else member.board
        seeds = PolicySeeds(index, start, channels.inference_restarts, board)
        own = None if ladder is None else of_rows(ladder, plan)
        return acting_maker(new_network, weights, plan, seeds, progress, own)

    count = acting.num_splits // plan.num_splits
    group = ActingGroup(channels, replay.exchange, new_acting, member, count)
    explored = None if ladder is None else exploration(ladder, plan, index, count)
    return ReplayParts(policy, agents, new_network, group, replay, explored)


def _add_group(
    graph: GraphBuilder,
    parts: ReplayParts,
    prefix: str,
    playing: Playing,
    start: ResumePoint,
) -> AddedGroup:
    """Add the workers of one policy group. ``prefix``: of their names; ``playing``: the policies
    that play the other agent groups in evaluations; ``start``: of the run."""
    config, plan = parts.agents.config, parts.agents.plan
    policy, replay, weights = parts.policy, parts.replay, parts.channels.weights
    add_policy_workers(graph, parts.acting, plan)
    for index in range(len(plan.stored_slots)):
        _add_shard(graph, index, replay, config, plan, policy.start, parts.channels.placement)
    learners = _add_learners(graph, parts, config, plan)
    first = learners.nodes[0].name
    evaluation = add_evaluators(
        graph,
        config,
        weights,
        parts.new_model,
        start,
        first,
        group=parts.policy.group,
        playing=playing,
    )
    group = PolicyGroup(
        policy.id,
        learners.nodes,
        replay.exchange,
        weights,
        snapshot=learners.snapshot,
        exploration=parts.exploration,
        archive=replay.archive if saves(config) else None,
        histograms=replay.histograms,
        evaluations=evaluation.results,
        resources=learners.resources,
        member=parts.acting.member,
    )
    notes = replay_notes(config, plan, replay.exchange.slots, replay.archive, policy.start)
    edges = _edges(config, plan, prefix)
    return AddedGroup(group, edges, evaluation.edges, (*notes, *learners.notes))


def _replay_channels(
    algorithm: Algorithm,
    config: ReplayRunConfig,
    plan: ReplayPlan,
    slots: TrajectorySlots,
    frames: CompressedFrames | None,
    channels: GroupChannels,
    start: ResumePoint,
) -> ReplayChannels:
    """Make the channels of the replay of one policy group."""
    assert algorithm.finish_rollout is not None
    shard_wakeups = wakeups(len(plan.stored_slots))
    replay_counters = ReplayCounters(len(shard_wakeups))
    limiter = RateLimiter(
        replay_counters, plan.item_ratio, plan.tolerance, plan.learning_starts_items
    )
    archive = make_archive(config, plan, slots, shard_wakeups, start)
    if start.resume is not None:
        saved = archive.where.saved
        limiter.load(
            start.resume.plain()["limiter"],
            restoring=saved is not None,
            begun=saved is not None and saved.learning,
        )
    sample_requests = SampleRequests(
        config.prefetch_batches,
        plan.batch_size,
        shard_wakeups,
        channels.learner_wakeups[0],
        _counted(config, slots.shape.spec),
    )
    return ReplayChannels(
        exchange=ReplayExchange(
            slots,
            channels.actor_wakeups,
            shard_wakeups,
            plan.leases,
            algorithm.finish_rollout(config, channels.weights),
            shares_of(config, plan),
        ),
        frames=frames,
        sample_requests=sample_requests,
        limiter=limiter,
        shard_wakeups=shard_wakeups,
        histograms=ReplayHistograms(sample_requests, len(shard_wakeups)),
        archive=archive,
        memories=[
            ShardMemory(count, slots.shape.items, prioritised=config.priority_exponent > 0)
            for count in plan.shard_slots
        ],
        shard_restarts=RestartBudget(len(shard_wakeups), config.max_worker_restarts),
    )


def _counted(config: ReplayRunConfig, spec: EnvSpec) -> Shapes:
    """Return the shapes of the observation leaves that are normalised. The replay shards count
    their statistics when rollouts are inserted."""
    leaves = normalised_leaves(spec.observations, config.model)
    return {name: leaf.shape for name, leaf in leaves.items()}


def _add_shard(
    graph: GraphBuilder,
    index: int,
    replay: ReplayChannels,
    config: ReplayRunConfig,
    plan: ReplayPlan,
    start: ResumePoint,
    placement: Placement,
) -> None:
    counts = plan.shard_slots
    make_shard = partial(
        make_shard_of,
        ShardSlots(index, sum(counts[:index]), counts[index], plan.stored_slots[index]),
        replay,
        plan,
        Prioritisation(config.priority_exponent, config.priority_epsilon),
        [start.seed, start.resumes],
    )
    make_worker = partial(
        ReplayWorker,
        index,
        make_shard,
        replay.exchange,
        replay.sample_requests,
        replay.limiter,
        replay.histograms,
        replay.archive,
        replay.shard_wakeups[index],
        graph.counters,
    )
    graph.add(
        "replay",
        make_worker,
        replay.shard_wakeups[index],
        placement,
        restart=RestartAlone(replay.shard_restarts, index),
        in_checkpoint=saves(config),
    )


def make_shard_of(
    own: ShardSlots,
    replay: ReplayChannels,
    plan: ReplayPlan,
    priority: Prioritisation,
    seed: list[int],
) -> ReplayShard:
    """Return one shard. Each of its lives draws other samples."""
    index, slots, life = own.index, replay.exchange.slots, replay.shard_restarts.life(own.index)
    store = None
    if replay.frames is not None:
        store = FrameStore(index, replay.frames, slots, plan.frame_buffers_of(index))
    seed = [*seed, index, *([life] if life else [])]
    memory, counters = replay.memories[index], replay.limiter.replay_counters
    return ReplayShard(own, slots, memory, priority, counters, seed, store)


def _add_learners(
    graph: GraphBuilder, parts: ReplayParts, config: ReplayRunConfig, plan: ReplayPlan
) -> Learners:
    """Add the learner, or several that have equal parts of each sample."""
    channels = parts.channels
    wakeup, *followers = channels.learner_wakeups
    if config.sampler_only:
        return Learners((graph.add("learner", lambda counter_row: NoLearner(wakeup), wakeup),))
    devices = learner_devices(config, plan.device)
    relay = SampleRelay(followers, config.prefetch_batches) if followers else None
    maker = LearnerMaker(
        plan,
        parts.new_model,
        parts.policy,
        sample_batches(config, plan, parts.policy.start, parts.replay, devices, relay),
        max(1, config.weights_refresh_interval // 2),
        partial(compile_or_capture, config),
    )
    member = parts.acting.member
    if config.serial and member is None:
        return add_only_learner(graph, channels, maker)
    rendezvous = None
    if followers:
        errors = 8 * plan.batch_size // config.num_learners  # gathered as float64
        rendezvous = local_rendezvous(
            devices,
            config.learner_timeout,
            gradient_bytes(parts.new_model, plan, parts.policy.start),
            "learner",
            errors,
        )
    snapshot = StateSnapshot(new_state(parts.new_model, plan, parts.policy.start))
    return add_learners(graph, config, channels, maker, snapshot, rendezvous, member)


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


def _notes(config: ReplayRunConfig, plan: ReplayPlan, spec: EnvSpec) -> tuple[str, ...]:
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

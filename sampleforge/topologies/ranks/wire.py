"""Ranks that each sample and learn, and average their gradients.

As DD-PPO has them: Wijmans et al. 2019, arXiv 1911.00357.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sampleforge.algorithms.algorithm import Algorithm
from sampleforge.config import ConfigError
from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector
from sampleforge.peers.group import Rendezvous
from sampleforge.peers.group_epoch import GroupEpoch
from sampleforge.peers.progress_board import Board, RolloutBoard
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.runtime.numa import memory_on, node_of
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.counters import AgreedProgress
from sampleforge.shared.records import EpisodeQueue, Episodes, EpisodesOf
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.wakeup import Wakeup
from sampleforge.shared.weights import SharedWeights
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import (
    NetworkMaker,
    PolicySeeds,
    PolicyStart,
    ResumePoint,
    acting_maker,
    env_makers,
    gradient_bytes,
    initial_weights,
    make_learner,
    new_state,
)
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.evaluator import add_evaluators, num_evaluators
from sampleforge.topologies.graph import Edge, Graph, GraphBuilder, Node, PolicyGroup
from sampleforge.topologies.ranks.plan import acts_on_device, slot_shape, with_room
from sampleforge.topologies.recording import (
    add_recorder,
    num_recorders,
    rollout_queue,
    with_recording,
)
from sampleforge.topologies.rendezvous import local_rendezvous, member_devices
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.callback import NO_HOOKS, RunHooks, WorkerCallbacks
from sampleforge.workers.group_member import REPLACEMENT_TIMEOUT, GroupMember
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.learner import LearnerSettings, Save
from sampleforge.workers.preemption import Preemption
from sampleforge.workers.rank import RankWorker
from sampleforge.workers.rank_sync import MetricsSync
from sampleforge.workers.stepping import Stepping, SteppingInRounds
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Placement


def wire_ranks(
    algorithm: Algorithm,
    config: RanksRunConfig,
    plan: Plan,
    spec: EnvSpec,
    start: ResumePoint,
    policies: Sequence[PolicyStart],
    hooks: RunHooks = NO_HOOKS,
) -> Graph:
    """Wire the ranks of this machine, which learn one policy. Nothing runs yet, except the store of
    nccl, if each rank has a GPU. Rank 0 answers the driver and writes the checkpoints. ``hooks``:
    of the run's callbacks."""
    policy = single_policy(config.algo, policies)
    start, ranks = policy.start, plan.num_workers
    workers = ranks + num_recorders(config) + num_evaluators(config)
    graph = GraphBuilder(config.algo, workers, config, start, hooks)
    episodes = EpisodeQueue(ranks)
    new_model = NetworkMaker(algorithm, config, spec, start.seed)
    devices = member_devices(plan.device, ranks)
    rendezvous = local_rendezvous(
        devices, config.rank_timeout, gradient_bytes(new_model, plan, start)
    )
    snapshot = None if config.serial else StateSnapshot(new_state(new_model, plan, start))
    streams = plan.num_splits * (2 if config.variable_experience else 1)
    shape = slot_shape(algorithm, config, spec, plan.rows, ranks)
    queue = rollout_queue(config, spec, shape, ranks, streams)
    context = RankContext(
        graph,
        new_model,
        plan,
        start,
        policy.save,
        episodes,
        RolloutBoard(ranks),
        GroupEpoch(config.max_rank_restarts, ranks),
        snapshot=snapshot,
        recorded=queue,
    )
    added = [add_rank(context, join) for join in rendezvous.members]
    recording = add_recorder(graph, config, queue)
    nodes, exchanges, weights = zip(*added, strict=True)
    evaluation = add_evaluators(graph, config, weights[0], new_model, start, "rank 0")
    group = PolicyGroup(
        policy.id,
        nodes,
        exchanges[0],
        weights[0],
        plan.lag.limit,
        synchronous=True,
        snapshot=snapshot,
        evaluations=evaluation.results,
        resources=rendezvous.resources,
    )
    wired = graph.build(
        groups=[group],
        edges=[*edges(ranks), *evaluation.edges],
        notes=notes(config, plan, spec, rendezvous.note, snapshot),
        episodes=episodes,
        progress=AgreedProgress(**vars(graph.progress), ranks=tuple(range(ranks))),
    )
    return with_recording(wired, recording)


def single_policy(algo: str, policies: Sequence[PolicyStart]) -> PolicyStart:
    """Return the only policy. Raises ConfigError for several policies."""
    if len(policies) != 1:
        raise ConfigError(
            f"{algo} trains one policy, but {len(policies)} are asked for: a rank's actor and "
            "learner share one; use appo or apex"
        )
    return policies[0]


@dataclass(frozen=True)
class RankContext:
    """The arguments that all ranks of a process share. ``snapshot``: the state from which new ranks
    resume if none survives. ``metrics_sync``: set if the ranks share no memory. ``recorded``: the
    queue to the recorder (None: nothing is recorded)."""

    graph: GraphBuilder
    new_model: NetworkMaker
    plan: Plan
    start: ResumePoint
    save: Save
    episodes: Episodes
    board: Board
    group_epoch: GroupEpoch
    snapshot: StateSnapshot | None = None
    metrics_sync: MetricsSync | None = None
    recorded: RolloutQueue | None = None

    @property
    def config(self) -> Any:
        return self.new_model.config

    @property
    def spec(self) -> EnvSpec:
        return self.new_model.spec


def add_rank(
    context: RankContext, join: Rendezvous, local_rank: int | None = None
) -> tuple[Node, SlotExchange, SharedWeights]:
    """Add one rank, with slots and weights that only it uses. ``local_rank``: its number on this
    machine (default: its rank)."""
    plan = dataclasses.replace(context.plan, device=join.device)
    context = dataclasses.replace(context, plan=plan)
    graph, config, rank, wakeup = context.graph, context.config, join.rank, Wakeup()
    shape = slot_shape(context.new_model.algorithm, config, context.spec, plan.rows, join.size)
    placement = rank_placement(config, plan, rank if local_rank is None else local_rank)
    with memory_on(node_of(placement.cores)):
        slots = TrajectorySlots(plan.slots // plan.num_workers, shape, debug=config.debug)
        weights = initial_weights(context.new_model, context.start)
    exchange = SlotExchange(slots, [wakeup], [wakeup])
    envs = env_makers(rank, config, plan, context.start, context.group_epoch, graph.hooks.tasks)
    if config.variable_experience:
        envs = [partial(ThreadedVector, make, wakeup.set) for make in envs]
    preemption = _preemption(context, join)
    callbacks = graph.hooks.of_worker(rank)  # one copy: the rank is one worker
    actor = _rank_actor(context, join, exchange, weights, wakeup, envs, preemption, callbacks)
    member = _group_member(context, join, weights)

    def make_worker(counter_row: int) -> RankWorker:
        batches = SlotBatches(exchange, slots.count, torch.device(plan.device), synchronous=True)
        settings = LearnerSettings(
            counter_row,
            wakeup,
            graph.progress,
            context.save,
            weights,
            plan.learner_threads,
            counts_updates=rank == 0,
            callbacks=callbacks,
        )
        return RankWorker(member, actor, batches, settings, graph.counters, preemption)

    node = graph.add(
        "rank",
        make_worker,
        wakeup,
        placement,
        RestartInGroup(context.group_epoch),
        envs,
        row=rank,
        in_checkpoint=rank == 0 and context.snapshot is None,
    )
    return node, exchange, weights


def _preemption(context: RankContext, join: Rendezvous) -> Preemption:
    config, plan = context.config, context.plan
    at_once = plan.num_splits if config.variable_experience else 1
    return Preemption(
        context.board,
        join.rank,
        join.size,
        plan.rollout * at_once,
        config.sync_fraction,
        config.min_rollout_fraction,
        at_once,
    )


def _rank_actor(
    context: RankContext,
    join: Rendezvous,
    exchange: SlotExchange,
    weights: SharedWeights,
    wakeup: Wakeup,
    envs: Sequence[Callable[[], EnvVector]],
    preemption: Preemption,
    callbacks: WorkerCallbacks | None,
) -> ActorWorker:
    """Return the actor of a rank."""
    config, plan, rank = context.config, context.plan, join.rank
    on_device = acts_on_device(config, plan.device, context.spec)
    new_acting = acting_maker(
        context.new_model,
        weights,
        plan,
        PolicySeeds(rank, context.start, context.group_epoch),
        context.graph.progress,
        device=plan.device if on_device else None,
    )
    # All ranks end after the same update. An actor that stopped sampling at the limit by itself
    # would keep the other ranks waiting for its gradients.
    endless = dataclasses.replace(context.graph.progress, limit_env_steps=None, limit_s=None)
    ends_early = preemption.ends if join.size > 1 else None
    inference = LocalInference(
        new_acting,
        exchange.slots,
        plan.num_splits,
        rank,
        together=config.variable_experience,
        device=plan.device if on_device else "cpu",
    )
    stepping = Stepping(ends_early)
    if config.variable_experience:
        steps = with_room(config, plan.num_splits * plan.rollout, join.size)
        stepping = SteppingInRounds(exchange, steps, ends_early)
    return ActorWorker(
        0,
        envs,
        [PolicyPort(0, exchange, inference, sender(context.recorded, rank))],
        EpisodesOf(context.episodes, rank),
        wakeup,
        endless,
        rank,
        stepping=stepping,
        callbacks=callbacks,
    )


def _group_member(context: RankContext, join: Rendezvous, weights: SharedWeights) -> GroupMember:
    """Return the membership of a rank in the group."""
    config, plan = context.config, context.plan
    # torchrun replaces all ranks at once: waiting for a single one would be in vain.
    timeout = REPLACEMENT_TIMEOUT if context.metrics_sync is None else 0.0
    return GroupMember(
        join.rank,
        join.rank,
        join.join,
        partial(make_learner, context.new_model, plan, context.start, varies=True),
        weights,
        context.graph.progress,
        context.graph.stop,
        context.group_epoch,
        debug=config.debug,
        metrics_sync=context.metrics_sync,
        snapshot=context.snapshot,
        replacement_timeout=timeout,
    )


def rank_placement(config: RanksRunConfig, plan: Plan, local_rank: int) -> Placement:
    """Return the placement of a rank: the ranks of a machine are pinned to its cores in turn."""
    cores = available_cores()
    pinned_to = (cores[local_rank % len(cores)],) if plan.pin_actors else None
    return Placement(pinned_to, config.worker_niceness)


def edges(ranks: int) -> tuple[Edge, ...]:
    """Return the edges of the ranks."""
    each = f"{ranks} ranks"
    return (
        Edge(each, each, "gradients, summed at every minibatch; counts and moments"),
        Edge("rank 0", "driver", "checkpoints, metrics"),
        Edge(each, "driver", "finished episodes"),
    )


def notes(
    config: RanksRunConfig,
    plan: Plan,
    spec: EnvSpec,
    gradients: str,
    snapshot: StateSnapshot | None = None,
) -> tuple[str, ...]:
    """Return the notes about a run; ``gradients`` names the transport of gradients."""
    ranks = plan.num_workers
    state = "" if snapshot is None else human_bytes(snapshot.nbytes)
    variable = plan.slots > ranks * plan.num_splits
    on_gpu = acts_on_device(config, plan.device, spec)
    return (
        plan.describe_envs("ranks"),
        f"batch {ranks * plan.batch_size} env steps = {ranks} ranks x {plan.batch_size}",
        *(["variable experience: faster splits give more of a batch"] if variable else []),
        *plan.lag.notes,
        f"slots {human_bytes(plan.slot_bytes)} of shared memory",
        f"ranks on {plan.device}, {plan.learner_threads} thread(s) each",
        *(["inference on the rank's GPU (images)"] if on_gpu else []),
        gradients,
        *([f"learner state {state} of shared memory, for restarts"] if state else []),
        *plan.reasons,
        *([f"protocol: {spec.protocol}"] if spec.protocol else []),
    )

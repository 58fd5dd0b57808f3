"""One rank: its slots, its weights, and the worker that samples and learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.peers.boards import Board, GroupEpoch
from sampleforge.peers.group import Rendezvous
from sampleforge.rollouts.batch_source import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.numa import memory_on, node_of
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.records import Episodes, EpisodesOf
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import (
    MakeEnv,
    NetworkMaker,
    PolicySeeds,
    acting_maker,
    env_makers,
    in_threads,
    initial_weights,
)
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.graph import GraphBuilder, Node
from sampleforge.topologies.learner_group import LearnerMaker
from sampleforge.topologies.ranks_plan import acts_on_device, slot_shape, with_room
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampler_plan import (
    Plan,
)
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.group_member import (
    REPLACEMENT_TIMEOUT,
    GroupMember,
    Membership,
    MetricsSync,
)
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.learner import LearnerSettings
from sampleforge.workers.rank import Preemption, RankWorker
from sampleforge.workers.split import Stepping, SteppingInRounds
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Placement, Post


@dataclass(frozen=True)
class RankContext:
    """The arguments that all ranks of a process share. ``rows``: the counter row of each rank, also
    of those on other machines. ``snapshot``: the state from which new ranks resume if none
    survives. ``metrics_sync``: set if the ranks share no memory. ``recorded``: the
    queue to the recorder (None: nothing is recorded)."""

    graph: GraphBuilder
    new_model: NetworkMaker
    plan: Plan
    policy: PolicyStart
    episodes: Episodes
    board: Board
    group_epoch: GroupEpoch
    rows: Sequence[int]
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
    graph, config, rank = context.graph, context.config, join.rank
    post = graph.post(row=context.rows[rank])
    shape = slot_shape(context.new_model.algorithm, config, context.spec, plan.rows, join.size)
    placement = rank_placement(config, plan, rank if local_rank is None else local_rank)
    with memory_on(node_of(placement.cores)):
        slots = TrajectorySlots(plan.slots // plan.num_workers, shape, debug=config.debug)
        weights = initial_weights(context.new_model, context.policy.start)
    exchange = SlotExchange(slots, [post.wakeup], [post.wakeup])
    envs = env_makers(
        rank, config, plan, context.policy.start, context.group_epoch.life, graph.hooks.tasks
    )
    if config.variable_experience:
        envs = in_threads(envs, post.wakeup)
    preemption = _preemption(context, join)
    callbacks = graph.hooks.of_worker(rank)  # one copy: the rank is one worker
    batches = SlotBatches(exchange, slots.count, torch.device(plan.device), synchronous=True)
    settings = LearnerSettings(
        post,
        context.policy.save,
        weights,
        plan.learner_threads,
        counts_updates=rank == 0,
        callbacks=callbacks,
    )
    worker = RankWorker(
        _group_member(context, join, batches, settings),
        _rank_actor(context, join, exchange, weights, post, envs, preemption, callbacks),
        batches,
        settings,
        preemption,
    )
    node = graph.add(
        "rank",
        worker,
        post,
        placement,
        RestartInGroup(context.group_epoch),
        envs,
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
    post: Post,
    envs: Sequence[MakeEnv],
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
        PolicySeeds(rank, context.policy.start, context.group_epoch.life),
        context.graph.progress,
        device=plan.device if on_device else None,
    )
    # All ranks end after the same update. An actor that stopped sampling at the limit by itself
    # would keep the other ranks waiting for its gradients.
    endless = dataclasses.replace(post.progress, limit_env_steps=None, limit_s=None)
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
        dataclasses.replace(post, progress=endless),
        stepping=stepping,
        callbacks=callbacks,
    )


def _group_member(
    context: RankContext, join: Rendezvous, batches: SlotBatches, settings: LearnerSettings
) -> GroupMember:
    """Return the membership of a rank in the group."""
    membership = Membership(
        join.rank,
        join.join,
        context.group_epoch,
        context.graph.stop,
        context.graph.counters,
        settings.post.row - join.rank,
        # torchrun replaces all ranks at once: waiting for a single one would be in vain.
        REPLACEMENT_TIMEOUT if context.metrics_sync is None else 0.0,
    )
    return GroupMember(
        membership,
        LearnerMaker(context.new_model, context.plan, context.policy, batches, varies=True),
        settings,
        debug=context.config.debug,
        snapshot=context.snapshot,
        metrics_sync=context.metrics_sync,
    )


def rank_placement(config: RanksRunConfig, plan: Plan, local_rank: int) -> Placement:
    """Return the placement of a rank: the ranks of a machine are pinned to its cores in turn."""
    cores = available_cores()
    pinned_to = (cores[local_rank % len(cores)],) if plan.pin_actors else None
    return Placement(pinned_to, config.worker_niceness)

"""One rank: its slots, its weights, and the worker that samples and learns."""

from __future__ import annotations

import dataclasses

import torch

from sampleforge.peers.group import Rendezvous
from sampleforge.rollouts.batch import SlotBatches
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.numa import memory_on, node_of
from sampleforge.runtime.processes import available_cores
from sampleforge.shared.newest import SharedWeights
from sampleforge.topologies.builders import env_makers, in_threads, initial_weights
from sampleforge.topologies.config import RanksRunConfig
from sampleforge.topologies.graph import Node
from sampleforge.topologies.learner_maker import LearnerMaker
from sampleforge.topologies.ranks.actor import RankContext, rank_actor, rank_preemption
from sampleforge.topologies.ranks.plan import slot_shape
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.workers.group_member import REPLACEMENT_TIMEOUT, GroupMember, Membership
from sampleforge.workers.learner import LearnerSettings
from sampleforge.workers.rank import RankWorker
from sampleforge.workers.worker import Placement


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
        rank, config, plan, context.policy.start, context.restart.epoch.life, graph.hooks.tasks
    )
    if config.variable_experience:
        envs = in_threads(envs, post.wakeup)
    preemption = rank_preemption(context, join)
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
        rank_actor(context, join, exchange, weights, post, envs, preemption, callbacks),
        batches,
        settings,
        preemption,
    )
    node = graph.add(
        "rank",
        worker,
        post,
        placement,
        context.restart,
        envs,
        in_checkpoint=rank == 0 and context.snapshot is None,
    )
    return node, exchange, weights


def _group_member(
    context: RankContext, join: Rendezvous, batches: SlotBatches, settings: LearnerSettings
) -> GroupMember:
    """Return the membership of a rank in the group."""
    membership = Membership(
        join.rank,
        join.join,
        context.restart.epoch,
        context.graph.stop,
        context.graph.counters,
        settings.post.row - join.rank,
        # torchrun replaces all ranks at once: waiting for a single one would be in vain.
        REPLACEMENT_TIMEOUT if context.metrics_sync is None else 0.0,
    )
    return GroupMember(
        membership,
        LearnerMaker(context.new_model, context.plan, context.policy, batches, varies=True),
        settings.post,
        settings.weights,
        debug=context.config.debug,
        snapshot=context.snapshot,
        metrics_sync=context.metrics_sync,
    )


def rank_placement(config: RanksRunConfig, plan: Plan, local_rank: int) -> Placement:
    """Return the placement of a rank: each rank of a machine is pinned to an equal share of its
    cores, for its threads and those of its environments."""
    first = local_rank * plan.actor_cores
    cores = tuple(available_cores()[first : first + plan.actor_cores])
    return Placement(cores or None, config.worker_niceness)

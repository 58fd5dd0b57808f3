"""How a rank samples: its actor, and when its rollouts end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sampleforge.data.rollout_queue import RolloutQueue, sender
from sampleforge.peers.boards import Board
from sampleforge.peers.group import Rendezvous
from sampleforge.rollouts.exchange import SlotExchange
from sampleforge.shared.newest import SharedWeights, StateSnapshot
from sampleforge.shared.records import Episodes, EpisodesOf
from sampleforge.spec import EnvSpec
from sampleforge.topologies.builders import MakeEnv, NetworkMaker, PolicySeeds, acting_maker
from sampleforge.topologies.graph import GraphBuilder
from sampleforge.topologies.ranks.plan import acts_on_device, with_room
from sampleforge.topologies.restarts import RestartInGroup
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.starts import PolicyStart
from sampleforge.workers.actor import ActorWorker
from sampleforge.workers.callback import WorkerCallbacks
from sampleforge.workers.group_member import MetricsSync
from sampleforge.workers.inference import LocalInference
from sampleforge.workers.rank import Preemption
from sampleforge.workers.split import Stepping, SteppingInRounds
from sampleforge.workers.stream import PolicyPort
from sampleforge.workers.worker import Post


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
    restart: RestartInGroup
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


def rank_preemption(context: RankContext, join: Rendezvous) -> Preemption:
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


def rank_actor(
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
        PolicySeeds(rank, context.policy.start, context.restart.epoch.life),
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

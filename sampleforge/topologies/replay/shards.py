"""The replay shards of one policy, each in a worker of its own."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.replay.compressed import FrameStore
from sampleforge.replay.shard import Prioritisation, ReplayShard, ShardSlots
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.graph import GraphBuilder
from sampleforge.topologies.replay.channels import ReplayChannels
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.replay.saving import saves
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.replay import ReplayWorker
from sampleforge.workers.worker import Placement


@dataclass(frozen=True)
class ShardMaker:
    """Makes one shard, in its worker's process. Each of its lives draws other samples."""

    own: ShardSlots
    replay: ReplayChannels
    plan: ReplayPlan
    priority: Prioritisation
    start: ResumePoint

    def __call__(self) -> ReplayShard:
        index, replay, slots = self.own.index, self.replay, self.replay.exchange.slots
        store = None
        if replay.frames is not None:
            store = FrameStore(index, replay.frames, slots, self.plan.frame_buffers_of(index))
        life = replay.shard_restarts.life(index)
        seed = [self.start.seed, self.start.resumes, index, *([life] if life else [])]
        memory, counters = replay.memories[index], replay.limiter.replay_counters
        return ReplayShard(self.own, slots, memory, self.priority, counters, seed, store)


def add_shards(
    graph: GraphBuilder,
    replay: ReplayChannels,
    config: ReplayRunConfig,
    plan: ReplayPlan,
    start: ResumePoint,
    placement: Placement,
) -> None:
    """Add the shards of a policy that begins at ``start``."""
    counts = plan.shard_slots
    priority = Prioritisation(config.priority_exponent, config.priority_epsilon)
    for index, wakeup in enumerate(replay.shard_wakeups):
        own = ShardSlots(index, sum(counts[:index]), counts[index], plan.stored_slots[index])
        row = graph.new_row()
        worker = ReplayWorker(
            index,
            ShardMaker(own, replay, plan, priority, start),
            replay.exchange,
            replay.sample_requests,
            replay.limiter,
            replay.histograms,
            replay.archive,
            wakeup,
            graph.counters,
            row,
        )
        restart = RestartAlone(replay.shard_restarts, index)
        graph.add("replay", worker, row, wakeup, placement, restart, in_checkpoint=saves(config))

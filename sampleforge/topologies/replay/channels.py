"""The channels between the actors, the replay shards and the learners of one policy."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.models.normaliser import normalised_leaves
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.exchange import ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.observation_stats import Shapes
from sampleforge.replay.shard import ShardMemory
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.runtime.numa import memory_on
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.group_wiring import GroupMemory
from sampleforge.topologies.replay.datasets import shares_of
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.replay.saving import make_archive


@dataclass(frozen=True)
class ReplayChannels:
    """What the shards share with actors and learners, and each shard's ``memories``."""

    exchange: ReplayExchange
    frames: CompressedFrames | None
    sample_requests: SampleRequests
    limiter: RateLimiter
    shard_wakeups: list[Wakeup]
    histograms: ReplayHistograms
    archive: ReplayArchive
    memories: list[ShardMemory]
    shard_restarts: RestartBudget


def replay_channels(memory: GroupMemory) -> ReplayChannels:
    """Make the channels of the replay of a policy group, near to its slots."""
    with memory_on(memory.channels.node):
        return _replay_channels(memory, memory.agents.config, memory.agents.plan)


def _replay_channels(
    memory: GroupMemory, config: ReplayRunConfig, plan: ReplayPlan
) -> ReplayChannels:
    slots, channels, algorithm = memory.slots, memory.channels, memory.agents.algorithm
    assert algorithm.finish_rollout is not None
    frames = None
    if plan.ring_bytes:
        frames = CompressedFrames(slots.shape, plan.shard_slots, plan.ring_bytes)
    shard_wakeups, start = wakeups(len(plan.stored_slots)), memory.policy.start
    limiter = RateLimiter(
        ReplayCounters(len(shard_wakeups)),
        plan.item_ratio,
        plan.tolerance,
        plan.learning_starts_items,
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

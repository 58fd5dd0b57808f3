"""The channels between the actors, the replay shards and the learners of one policy of Ape-X."""

from __future__ import annotations

from dataclasses import dataclass

from sampleforge.replay.compressed import CompressedFrames
from sampleforge.replay.exchange import ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter
from sampleforge.replay.shard_memory import ShardMemory
from sampleforge.replay.snapshot import ReplayArchive
from sampleforge.shared.restart_budget import RestartBudget
from sampleforge.shared.wakeup import Wakeup


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

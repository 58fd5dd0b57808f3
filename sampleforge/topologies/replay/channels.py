"""The replay of one policy: what its shards, the actors and the learners share, how it is saved and
restored, and the workers of the shards."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from sampleforge.config import ConfigError, difference
from sampleforge.models.normaliser import normalised_leaves
from sampleforge.replay.compressed import CompressedFrames, FrameStore
from sampleforge.replay.exchange import ReplayExchange, SampleRequests
from sampleforge.replay.histograms import ReplayHistograms
from sampleforge.replay.limiter import RateLimiter, ReplayCounters
from sampleforge.replay.observation_stats import Shapes
from sampleforge.replay.shard import Prioritisation, ReplayShard, ShardMemory, ShardSlots
from sampleforge.replay.snapshot import ReplayArchive, ReplayFolder, geometry, saved_bytes
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.counters import RestartBudget
from sampleforge.shared.wakeup import Wakeup, wakeups
from sampleforge.spec import EnvSpec
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.graph import GraphBuilder
from sampleforge.topologies.group_wiring import GroupWiring
from sampleforge.topologies.placement import placement_beside
from sampleforge.topologies.replay.datasets import shares_of
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.restarts import RestartAlone
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.replay import ReplayChannels, ReplayWorker


def saves(config: ReplayRunConfig) -> bool:
    """Return whether the checkpoints of this run include the replay."""
    return config.save_replay and not config.sampler_only and not config.benchmark


def make_archive(
    config: ReplayRunConfig,
    plan: ReplayPlan,
    slots: TrajectorySlots,
    shard_wakeups: list[Wakeup],
    start: ResumePoint,
) -> ReplayArchive:
    """Return the archive that saves the shards, with the saved replay to restore, if there is one
    that fits. Raises ConfigError if the disk has no room to save the replay."""
    rewards = {name: getattr(config, name) for name in ("reward_scale", "reward_clip")}
    ours = geometry(slots, plan.stored_slots, config.priority_exponent, rewards)
    where = start.replays or ReplayFolder(Path())
    if where.saved is not None:
        before = where.saved.geometry
        former = {n: v for n, v in rewards.items() if n in ours and n not in before}
        changed = difference({**former, **before}, ours)  # older ones do not say it
        if changed:
            why = f"the saved one does not fit: {', '.join(changed)}"
            where = dataclasses.replace(where, saved=None, missing=why)
    if saves(config):
        _check_room(plan, where, _size(config, plan, slots))
    return ReplayArchive(shard_wakeups, slots, ours, where)


def _size(config: ReplayRunConfig, plan: ReplayPlan, slots: TrajectorySlots) -> int:
    """Return the bytes of a full replay on the disk."""
    stored = sum(plan.stored_slots)
    return saved_bytes(slots, stored, config.priority_exponent > 0, sum(plan.ring_bytes))


def _check_room(plan: ReplayPlan, where: ReplayFolder, size: int) -> None:
    """Raise ConfigError if the disk has no room for two replays of ``size`` bytes: the previous one
    is kept until the new one is complete."""
    there = next(folder for folder in (where.path, *where.path.parents) if folder.exists())
    free, existing = shutil.disk_usage(there).free, where.saved.size if where.saved else 0
    if 2 * size - existing > free:
        raise ConfigError(
            f"--save-replay needs {human_bytes(size)} for a full replay, and as much again while "
            f"the next one is written, but only {human_bytes(free)} are free in {where.path}; make "
            "room, give a --run-dir (or a --folder of the population) on a larger disk, lower "
            f"--replay-capacity {plan.capacity}, or give --no-save-replay"
        )


def replay_notes(
    config: ReplayRunConfig,
    plan: ReplayPlan,
    slots: TrajectorySlots,
    archive: ReplayArchive,
    start: ResumePoint,
) -> list[str]:
    """Return the messages about what is saved and restored."""
    notes = []
    if saves(config):
        size = human_bytes(_size(config, plan, slots))
        notes.append(
            f"each checkpoint (--checkpoint-interval {config.checkpoint_interval:g}) saves the "
            f"replay: {size} when full, twice that while the next one is written; the learner "
            "waits meanwhile"
        )
    saved, missing = archive.where.saved, archive.where.missing
    if saved is not None:
        transitions = saved.items * plan.item_steps.inserted
        goes = "" if saves(config) else "; the next checkpoint removes it, --save-replay keeps one"
        notes.append(
            f"resumed with the replay of {saved.env_steps:,} env steps: {transitions:,} "
            f"transitions, {human_bytes(saved.size)}{goes}"
        )
    elif start.resume is not None:
        why = f" ({missing})" if missing else ""
        notes.append(
            f"resumed with an empty replay: {plan.learning_starts} transitions are collected "
            f"with the trained policy before learning continues{why}"
        )
    return notes


def replay_channels(group: GroupWiring[ReplayExchange]) -> ReplayChannels:
    """Make the channels of the replay of a policy group, whose slots there are already."""
    config, plan, slots, algorithm = group.config, group.plan, group.slots, group.agents.algorithm
    assert algorithm.finish_rollout is not None
    frames = None
    if plan.ring_bytes:
        frames = CompressedFrames(slots.shape, plan.shard_slots, plan.ring_bytes)
    shard_wakeups, start = wakeups(len(plan.stored_slots)), group.policy.start
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
        group.learner_wakeups[0],
        _counted(config, slots.shape.spec),
    )
    return ReplayChannels(
        exchange=ReplayExchange(
            slots,
            group.actors.wakeups,
            shard_wakeups,
            plan.leases,
            algorithm.finish_rollout(config, group.weights),
            shares_of(config, plan),
        ),
        frames=frames,
        sample_requests=sample_requests,
        limiter=limiter,
        wakeups=shard_wakeups,
        histograms=ReplayHistograms(sample_requests, len(shard_wakeups)),
        archive=archive,
        memories=[
            ShardMemory(count, slots.shape.items, prioritised=config.priority_exponent > 0)
            for count in plan.shard_slots
        ],
        restarts=RestartBudget(len(shard_wakeups), config.max_worker_restarts),
    )


def _counted(config: ReplayRunConfig, spec: EnvSpec) -> Shapes:
    """Return the shapes of the observation leaves that are normalised. The replay shards count
    their statistics when rollouts are inserted."""
    leaves = normalised_leaves(spec.observations, config.model)
    return {name: leaf.shape for name, leaf in leaves.items()}


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
        life = replay.restarts.life(index)
        seed = [self.start.seed, self.start.resumes, index, *([life] if life else [])]
        memory, counters = replay.memories[index], replay.limiter.replay_counters
        return ReplayShard(self.own, slots, memory, self.priority, counters, seed, store)


def add_shards(
    graph: GraphBuilder, group: GroupWiring[ReplayExchange], replay: ReplayChannels
) -> None:
    """Add the shards of a policy group."""
    config, plan, start = group.config, group.plan, group.policy.start
    counts, placement = plan.shard_slots, placement_beside(plan, group.node)
    priority = Prioritisation(
        config.priority_exponent,
        config.priority_epsilon,
        estimated=group.agents.algorithm.estimates_errors,
    )
    for index, wakeup in enumerate(replay.wakeups):
        own = ShardSlots(index, sum(counts[:index]), counts[index], plan.stored_slots[index])
        post = graph.post(wakeup)
        worker = ReplayWorker(index, ShardMaker(own, replay, plan, priority, start), replay, post)
        restart = RestartAlone(replay.restarts, index)
        graph.add("replay", worker, post, placement, restart, in_checkpoint=saves(config))

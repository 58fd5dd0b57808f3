"""What Ape-X saves of its replay, and takes up again."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from sampleforge.config import ConfigError, difference
from sampleforge.replay.snapshot import ReplayArchive, ReplayFolder, geometry, saved_bytes
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.apex.plan import ApexPlan
from sampleforge.topologies.builders import ResumePoint
from sampleforge.topologies.config import ApexConfig


def saves(config: ApexConfig) -> bool:
    """Whether checkpoints of this run hold the replay: what has no learner has no checkpoints."""
    return config.save_replay and not config.sampler_only and not config.benchmark


def make_archive(
    config: ApexConfig,
    plan: ApexPlan,
    slots: TrajectorySlots,
    shard_wakeups: list[Wakeup],
    start: ResumePoint,
) -> ReplayArchive:
    """What saves the shards, and knows the replay that they go on with, if it fits. Raises
    ConfigError if there is no room to save them."""
    ours = geometry(slots, plan.stored_slots, config.priority_exponent)
    where = start.replays or ReplayFolder(Path())
    if where.saved is not None:
        changed = difference(where.saved.geometry, ours)
        if changed:
            why = f"the saved one is laid out otherwise: {', '.join(changed)}"
            where = dataclasses.replace(where, saved=None, missing=why)
    if saves(config):
        _check_room(config, where, _size(config, plan, slots))
    return ReplayArchive(shard_wakeups, slots, ours, where)


def _size(config: ApexConfig, plan: ApexPlan, slots: TrajectorySlots) -> int:
    """Bytes of a full replay on the disk."""
    stored = sum(plan.stored_slots)
    return saved_bytes(slots, stored, config.priority_exponent > 0, sum(plan.ring_bytes))


def _check_room(config: ApexConfig, where: ReplayFolder, size: int) -> None:
    """The replay before stays until the new one is complete."""
    free, there = shutil.disk_usage(where.path).free, where.saved.size if where.saved else 0
    if 2 * size - there > free:
        raise ConfigError(
            f"--save-replay needs {human_bytes(size)} for a full replay, and as much again while "
            f"the next one is written, but only {human_bytes(free)} are free in {where.path}; make "
            f"room, give a --run-dir on a larger disk, or lower --replay-capacity "
            f"{config.replay_capacity}"
        )


def replay_notes(
    config: ApexConfig,
    plan: ApexPlan,
    slots: TrajectorySlots,
    archive: ReplayArchive,
    start: ResumePoint,
) -> list[str]:
    """What is saved and restored, in words."""
    notes = []
    if saves(config):
        size = human_bytes(_size(config, plan, slots))
        notes.append(
            f"each checkpoint (--checkpoint-interval {config.checkpoint_interval:g}) saves the "
            f"replay: {size} when full, twice that while the next one is written; learning waits"
        )
    saved, missing = archive.where.saved, archive.where.missing
    if saved is not None:
        transitions = saved.items * plan.item_steps.inserted
        notes.append(
            f"resumed with the replay of {saved.env_steps:,} env steps: {transitions:,} "
            f"transitions, {human_bytes(saved.size)}"
        )
    elif start.resume is not None:
        why = f" ({missing})" if missing else ""
        notes.append(
            f"resumed with an empty replay: {plan.learning_starts} transitions are collected "
            f"with the trained policy before learning goes on{why}"
        )
    return notes

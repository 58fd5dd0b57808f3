"""Saving and restoring the replay of an Ape-X run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from sampleforge.config import ConfigError, difference
from sampleforge.replay.snapshot import ReplayArchive, ReplayFolder, geometry, saved_bytes
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.config import ReplayRunConfig
from sampleforge.topologies.replay.plan import ReplayPlan
from sampleforge.topologies.starts import ResumePoint


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
    ours = geometry(slots, plan.stored_slots, config.priority_exponent)
    where = start.replays or ReplayFolder(Path())
    if where.saved is not None:
        changed = difference(where.saved.geometry, ours)
        if changed:
            why = f"the saved one has another layout: {', '.join(changed)}"
            where = dataclasses.replace(where, saved=None, missing=why)
    if saves(config):
        _check_room(config, where, _size(config, plan, slots))
    return ReplayArchive(shard_wakeups, slots, ours, where)


def _size(config: ReplayRunConfig, plan: ReplayPlan, slots: TrajectorySlots) -> int:
    """Return the bytes of a full replay on the disk."""
    stored = sum(plan.stored_slots)
    return saved_bytes(slots, stored, config.priority_exponent > 0, sum(plan.ring_bytes))


def _check_room(config: ReplayRunConfig, where: ReplayFolder, size: int) -> None:
    """Raise ConfigError if the disk has no room for two replays of ``size`` bytes: the previous one
    is kept until the new one is complete."""
    there = next(folder for folder in (where.path, *where.path.parents) if folder.exists())
    free, existing = shutil.disk_usage(there).free, where.saved.size if where.saved else 0
    if 2 * size - existing > free:
        raise ConfigError(
            f"--save-replay needs {human_bytes(size)} for a full replay, and as much again while "
            f"the next one is written, but only {human_bytes(free)} are free in {where.path}; make "
            f"room, give a --run-dir on a larger disk, or lower --replay-capacity "
            f"{config.replay_capacity}"
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
        notes.append(
            f"resumed with the replay of {saved.env_steps:,} env steps: {transitions:,} "
            f"transitions, {human_bytes(saved.size)}"
        )
    elif start.resume is not None:
        why = f" ({missing})" if missing else ""
        notes.append(
            f"resumed with an empty replay: {plan.learning_starts} transitions are collected "
            f"with the trained policy before learning continues{why}"
        )
    return notes

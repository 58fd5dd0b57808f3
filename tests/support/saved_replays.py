"""Replays of this process, saved to the disk and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sampleforge.replay.snapshot import ReplayArchive, ReplayFolder, geometry
from sampleforge.run.folder.replays import Replays
from sampleforge.shared.wakeup import Wakeup


def nothing() -> None:
    """Do nothing: no worker waits for the snapshot."""


def never() -> bool:
    return False


def archive_of(replay: Any, where: ReplayFolder) -> ReplayArchive:
    shards = replay.shards
    capacities = tuple(shard._capacity for shard in shards)
    ours = geometry(replay.slots, capacities, replay.priority.alpha, {})
    return ReplayArchive([Wakeup() for _ in shards], replay.slots, ours, where)


def saved(replay: Any, folder: Path, log: Callable[[str], None] = print) -> tuple[Any, Any]:
    """Save shards that are in this process; what `Replays.save` returns."""
    archive = archive_of(replay, ReplayFolder(folder))

    def shards_work() -> None:
        for index, shard in enumerate(replay.shards):
            archive.save(index, shard, nothing)

    return Replays(folder, never).save(archive, lambda: 123, shards_work, log)


def restored(replay: Any, reference: Any, folder: Path) -> None:
    """Restore into new shards."""
    where = Replays(folder, never).find(reference, pytest.fail)
    archive = archive_of(replay, where)
    assert where.saved is not None and where.saved.geometry == archive.geometry
    for index, shard in enumerate(replay.shards):
        archive.restore(index, shard, nothing)

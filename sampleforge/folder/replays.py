"""The replays of a run's checkpoints: the latest one is kept.

A replay is a folder of .npy files with a manifest of their checksums. A checkpoint names the folder
and the manifest's checksum. While one is written its folder has another name; the replay before is
removed when a checkpoint names the new one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from sampleforge.folder.atomic_file import fsync_folder, write_atomically
from sampleforge.replay.snapshot import (
    ReplayArchive,
    ReplayFolder,
    SavedFile,
    SavedReplay,
    SavedShard,
    shard_from_plain,
)
from sampleforge.runtime.machine import human_bytes

Log = Callable[[str], None]
Reference = dict[str, Any]
"""What a checkpoint says of its replay: folder, sha256 of the manifest, env_steps, size."""

HURRY = 1.0
"""Seconds that a replay may take when the run has been asked to end."""
_MANIFEST = "replay.json"
_FOLDER = re.compile(r"replay-\d{12,}-[0-9a-f]{16}")
_FILE = re.compile(r"shard-\d+-\d+\.npy")


class ReplayError(ValueError):
    """A saved replay that cannot be used."""


class Replays:
    """Those in ``folder``, of one run. ``interrupted``: whether the run has been asked to end."""

    def __init__(self, folder: Path, interrupted: Callable[[], bool]) -> None:
        self._folder = folder
        self._interrupted = interrupted
        self._latest: Reference | None = None
        self._gave_up = False

    # ---- resuming ----

    def find(self, reference: Reference | None, log: Log) -> ReplayFolder:
        """What a checkpoint names, verified; or why there is none. ``log`` is told if it is
        refused: the run goes on without."""
        if reference is None:
            return ReplayFolder(self._folder, missing="--save-replay keeps it")
        try:
            saved = self._verified(reference)
        except (ReplayError, OSError) as error:
            why = f"the saved one is refused: {error}"
            log(f"replay {reference.get('folder')}: {why}")
            return ReplayFolder(self._folder, missing=why)
        self._latest = reference
        return ReplayFolder(self._folder, saved)

    def _verified(self, reference: Reference) -> SavedReplay:
        folder, digest = str(reference.get("folder")), reference.get("sha256")
        if not _FOLDER.fullmatch(folder):
            raise ReplayError(f"{folder!r} is no name of a replay")
        path = self._folder / folder
        try:
            manifest = (path / _MANIFEST).read_bytes()
        except FileNotFoundError as error:
            raise ReplayError("it is gone; only that of the latest checkpoint is kept") from error
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise ReplayError(f"the checksum of its {_MANIFEST} is wrong")
        found = json.loads(manifest)
        shards = tuple(shard_from_plain(shard) for shard in found["shards"])
        for shard in shards:
            for file in shard.arrays.values():
                _verify(path, file)
        return SavedReplay(path, found["env_steps"], found["geometry"], shards)

    # ---- saving ----

    def save(
        self,
        archive: ReplayArchive | None,
        env_steps: Callable[[], int],
        wait: Callable[[], None],
        log: Log,
    ) -> tuple[Reference | None, str | None]:
        """Have the replay saved; ``wait`` lets the workers go on for a moment, or raises. Returns
        what the next checkpoint shall name, and what went wrong, if it did: then that is the replay
        before. None to name: replays are not saved."""
        if archive is None:
            return None, None
        if self._gave_up:
            return self._latest, None
        self.remove_unfinished()
        started = monotonic()
        try:
            folder = archive.ask()
            saved = self._wait(archive, wait, log)
            problem = archive.error
            if saved and problem is None:
                shards = archive.results(folder)
                self._latest = self._finish(archive, folder, shards, env_steps())
                took, size = monotonic() - started, self._latest["size"]
                log(f"replay saved: {human_bytes(size)} in {took:.1f} s")
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            return self._latest, None
        self.remove_unfinished()
        return self._latest, self._explained(problem)

    def _wait(self, archive: ReplayArchive, wait: Callable[[], None], log: Log) -> bool:
        """Until all shards have answered; False if the run is to end before they have."""
        give_up_at = None
        while not archive.answered:
            wait()
            if archive.error is not None:
                archive.cancel()
            if self._interrupted():
                give_up_at = give_up_at or monotonic() + HURRY
                if monotonic() > give_up_at:
                    archive.cancel()
                    self._gave_up = True
                    log(f"interrupted before the replay was saved: there is {self._which()}")
                    return False
        return True

    def _finish(
        self, archive: ReplayArchive, folder: Path, shards: list[SavedShard], env_steps: int
    ) -> Reference:
        """Give a complete replay its manifest and its name.

        One of that name holds the same: nothing was inserted since it was saved. A checkpoint may
        name it, so that it stays, unless it is damaged.
        """
        manifest = {
            "env_steps": env_steps,
            "geometry": archive.geometry,
            "shards": [dataclasses.asdict(shard) for shard in shards],
        }
        data = json.dumps(manifest, indent=1).encode()
        digest = hashlib.sha256(data).hexdigest()
        write_atomically(folder / _MANIFEST, data)
        final = self._folder / f"replay-{env_steps:012d}-{digest[:16]}"
        size = sum(file.size for shard in shards for file in shard.arrays.values())
        reference = {"folder": final.name, "sha256": digest, "env_steps": env_steps, "size": size}
        if final.exists() and self._is_whole(reference):
            shutil.rmtree(folder)
            return reference
        if final.exists():
            shutil.rmtree(final)
        os.rename(folder, final)
        fsync_folder(self._folder)
        return reference

    def _is_whole(self, reference: Reference) -> bool:
        """Whether the replay of that name is what was written."""
        try:
            self._verified(reference)
        except (ReplayError, OSError):
            return False
        return True

    def _explained(self, problem: str) -> str:
        free = human_bytes(shutil.disk_usage(self._folder).free)
        return (
            f"replay not saved: {problem} ({free} are free). Make room, move the run folder to a "
            "larger disk, lower --replay-capacity or leave out --save-replay, and run the same "
            f"command again: everything else has been saved, with {self._which()}"
        )

    def explain_checkpoint(self, problem: str) -> str:
        """What to do about a checkpoint that could not be written."""
        if "not finite" in problem:
            return f"checkpoint not written: {problem}; the one before stays, if there is one"
        free = human_bytes(shutil.disk_usage(self._folder).free)
        left = "goes on from the one before"
        if not any(self._folder.glob("*.safetensors")):
            left = "starts from the beginning: there is none before"
        return (
            f"checkpoint not written: {problem} ({free} are free in {self._folder}). Make room and "
            f"run the same command again: it {left}"
        )

    def _which(self) -> str:
        if self._latest is None:
            return "no replay"
        return f"the replay of {self._latest['env_steps']:,} env steps"

    def prune(self, reference: Reference | None) -> None:
        """Remove every replay but the one that the newest checkpoint names."""
        kept = None if reference is None else reference["folder"]
        for path in self._folder.glob("replay-*"):
            if path.name != kept and _FOLDER.fullmatch(path.name):
                shutil.rmtree(path)

    def remove_unfinished(self) -> None:
        """Remove what a kill, an interrupt or a full disk has left."""
        for path in self._folder.glob(".replay-*.unfinished"):
            shutil.rmtree(path)


def _verify(folder: Path, found: SavedFile) -> None:
    """Raise ReplayError unless a file is what was written."""
    if not _FILE.fullmatch(found.file):
        raise ReplayError(f"{found.file!r} is no name of a file of it")
    path = folder / found.file
    size = path.stat().st_size
    if size != found.size:
        raise ReplayError(f"{found.file} has {size} bytes of {found.size}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != found.sha256:
            raise ReplayError(f"the checksum of {found.file} is wrong")

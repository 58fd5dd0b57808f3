"""The saved replays of a run, of which only that of the latest checkpoint is kept.

A saved replay is a folder of .npy files with a manifest of their checksums. A checkpoint names the
folder and the manifest's checksum. The folder has a temporary name until it is complete, and the
previous replay is removed when a checkpoint names the new one.
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

from sampleforge.replay.snapshot import (
    ReplayArchive,
    ReplayFolder,
    SavedFile,
    SavedReplay,
    SavedShard,
    shard_from_plain,
)
from sampleforge.runtime.files import fsync, write_atomically
from sampleforge.runtime.machine import human_bytes

Log = Callable[[str], None]
Reference = dict[str, Any]
"""The entry of a checkpoint for its replay: folder, sha256 of the manifest, env_steps, size
(bytes)."""

INTERRUPTED_TIMEOUT = 1.0
"""Seconds that saving the replay may take after the run was asked to end."""
_MANIFEST = "replay.json"
_FOLDER = re.compile(r"replay-\d{12,}-[0-9a-f]{16}")
_FILE = re.compile(r"shard-\d+-\d+\.npy")


class ReplayError(ValueError):
    """A saved replay cannot be used."""


class Replays:
    """The saved replays of one run, in ``folder``. ``interrupted`` returns whether the run was
    asked to end."""

    def __init__(self, folder: Path, interrupted: Callable[[], bool]) -> None:
        self._folder = folder
        self._interrupted = interrupted
        self._latest: Reference | None = None
        self._gave_up = False

    # ---- resuming ----

    def find(self, reference: Reference | None, log: Log) -> ReplayFolder:
        """Return the verified replay that a checkpoint names, or the reason why there is none. If
        the replay is refused, ``log`` gets a message, and the run resumes without it."""
        if reference is None:
            return ReplayFolder(self._folder, missing="--save-replay would keep it")
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
            raise ReplayError(f"{folder!r} is not the name of a replay")
        path = self._folder / folder
        try:
            manifest = (path / _MANIFEST).read_bytes()
        except FileNotFoundError as error:
            raise ReplayError(
                "it no longer exists; only the replay of the latest checkpoint is kept"
            ) from error
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise ReplayError(f"the checksum of its {_MANIFEST} is wrong")
        plain = json.loads(manifest)
        shards = tuple(shard_from_plain(shard) for shard in plain["shards"])
        for shard in shards:
            for file in shard.arrays.values():
                _verify(path, file)
        return SavedReplay(path, plain["env_steps"], plain["geometry"], shards)

    # ---- saving ----

    def save(
        self,
        archive: ReplayArchive | None,
        env_steps: Callable[[], int],
        wait: Callable[[], None],
        log: Log,
    ) -> tuple[Reference | None, str | None]:
        """Save the replay. Return the reference for the next checkpoint, and the error message or
        None. After an error the reference is that of the previous replay; without an ``archive``
        there is no reference, because the run saves no replay.

        ``wait`` lets the workers run for a moment, and may raise."""
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
        """Wait until all shards have answered. Return False if the run was asked to end and they
        take longer than `INTERRUPTED_TIMEOUT`."""
        give_up_at = None
        while not archive.answered:
            wait()
            if archive.error is not None:
                archive.cancel()
            if self._interrupted():
                give_up_at = give_up_at or monotonic() + INTERRUPTED_TIMEOUT
                if monotonic() > give_up_at:
                    archive.cancel()
                    self._gave_up = True
                    log(f"interrupted before the replay was saved: there is {self._which()}")
                    return False
        return True

    def _finish(
        self, archive: ReplayArchive, folder: Path, shards: list[SavedShard], env_steps: int
    ) -> Reference:
        """Write the manifest of a complete replay and rename its folder; return the reference to
        it.

        If a folder of that name exists, it holds the same replay: nothing was inserted since it was
        saved. A checkpoint may name it, so it is kept unless it is damaged.
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
        fsync(self._folder)
        return reference

    def _is_whole(self, reference: Reference) -> bool:
        """Return whether the files of the replay are as they were written."""
        try:
            self._verified(reference)
        except (ReplayError, OSError):
            return False
        return True

    def _explained(self, problem: str) -> str:
        free = human_bytes(shutil.disk_usage(self._folder).free)
        return (
            f"replay not saved: {problem} ({free} are free). Make room, move the run folder to a "
            "larger disk, lower --replay-capacity or leave out --save-replay (a population of runs "
            "saves without it: give --no-save-replay), and run the same command again. "
            f"The rest of the checkpoint has been saved, with {self._which()}"
        )

    def explain_checkpoint(self, problem: str) -> str:
        """Return the message for a checkpoint that could not be written, with the remedy."""
        if "not finite" in problem:
            return f"checkpoint not written: {problem}; the previous one, if any, is kept"
        free = human_bytes(shutil.disk_usage(self._folder).free)
        effect = "resumes from the previous one"
        if not any(self._folder.glob("*.safetensors")):
            effect = "starts from the beginning, because there is no earlier one"
        return (
            f"checkpoint not written: {problem} ({free} are free in {self._folder}). Make room and "
            f"run the same command again: it {effect}"
        )

    def _which(self) -> str:
        if self._latest is None:
            return "no replay"
        return f"the replay of {self._latest['env_steps']:,} env steps"

    @property
    def latest(self) -> Reference | None:
        """The reference to the newest replay that is complete."""
        return self._latest

    def prune(self, reference: Reference | None) -> None:
        """Remove every replay except the one that the newest checkpoint names."""
        kept = None if reference is None else reference["folder"]
        for path in self._folder.glob("replay-*"):
            if path.name != kept and _FOLDER.fullmatch(path.name):
                shutil.rmtree(path)

    def remove_unfinished(self) -> None:
        """Remove the incomplete replays that a kill, an interrupt or a full disk has left."""
        for path in self._folder.glob(".replay-*.unfinished"):
            shutil.rmtree(path)


def _verify(folder: Path, saved: SavedFile) -> None:
    """Raise ReplayError unless a file is as it was written."""
    if not _FILE.fullmatch(saved.file):
        raise ReplayError(f"{saved.file!r} is not the name of one of its files")
    path = folder / saved.file
    size = path.stat().st_size
    if size != saved.size:
        raise ReplayError(f"{saved.file} has {size} bytes of {saved.size}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != saved.sha256:
            raise ReplayError(f"the checksum of {saved.file} is wrong")

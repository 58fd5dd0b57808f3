"""The store of a run's checkpoints, which writes, verifies, selects and prunes them.

Every file is named after its own SHA-256, so that it can be verified without the manifest. Its
header holds its entry of the manifest, so that a lost manifest can be rebuilt from the files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sampleforge.config import ConfigError, from_plain
from sampleforge.run.folder.atomic_file import TEMPORARY_SUFFIX, to_json, write_atomically
from sampleforge.run.folder.checkpoint_file import (
    Checkpoint,
    CheckpointError,
    decode,
    decode_about,
    encode,
)

__all__ = ["Checkpoint", "CheckpointEntry", "CheckpointError", "CheckpointStore"]

Log = Callable[[str], None]

_FILE_NAME = re.compile(r"\d{12,}-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class CheckpointEntry:
    """The manifest's entry of one checkpoint.

    ``sha256`` and ``size`` (bytes) are of the whole file; ``number`` counts the checkpoints of the
    run. ``return_mean`` is the mean return of training, None until the window of episodes is full.
    ``eval_return_mean`` is the result of the last evaluation before the checkpoint, with the
    weights at ``eval_env_steps``. ``kinds``: the reasons to keep it (latest, best, milestone)."""

    file: str
    sha256: str
    size: int
    number: int
    env_steps: int
    version: int
    return_mean: float | None
    milestone: bool
    kinds: tuple[str, ...] = ()
    eval_return_mean: float | None = None
    eval_env_steps: int | None = None

    @property
    def is_rated(self) -> bool:
        """Whether the checkpoint can be the best one, because it has a mean return."""
        return self.return_mean is not None or self.eval_return_mean is not None


class CheckpointStore:
    """The checkpoints in ``folder``: the latest ``keep``, the best one, and milestones. It has no
    open file and can be pickled; one process at a time may save."""

    def __init__(self, folder: Path, keep: int) -> None:
        assert keep >= 1
        self.folder = folder
        self.keep = keep
        self._manifest = folder / "manifest.json"

    def save(
        self,
        checkpoint: Checkpoint,
        *,
        env_steps: int,
        version: int,
        return_mean: float | None,
        eval_return_mean: float | None = None,
        eval_env_steps: int | None = None,
        milestone: bool = False,
    ) -> Path:
        """Write a checkpoint, then remove checkpoints that are not to be kept. Return the new file.

        Raises OSError if the file cannot be written; earlier checkpoints are then unchanged. Raises
        TypeError for a state that is not plain, and CheckpointError for a tensor that is not finite
        or weights that are older than a valid checkpoint, which they would replace.
        """
        self.folder.mkdir(exist_ok=True)
        for leftover in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            leftover.unlink()
        entries, _ = self._entries(_ignore)
        self._check_not_older(version, entries)
        about = {
            "number": 1 + max((entry.number for entry in entries), default=0),
            "env_steps": env_steps,
            "version": version,
            "return_mean": _finite(return_mean),
            "eval_return_mean": _finite(eval_return_mean),
            "eval_env_steps": eval_env_steps,
            "milestone": milestone,
        }
        data = encode(checkpoint, about)
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{env_steps:012d}-{digest[:16]}.safetensors"
        write_atomically(path, data)
        self._keep_wanted([*entries, _entry(path.name, data, about)])
        return path

    def _check_not_older(self, version: int, entries: list[CheckpointEntry]) -> None:
        """Raise CheckpointError if a valid checkpoint has a later version. A damaged checkpoint
        does not count, because the run has then resumed from an earlier one."""
        for entry in entries:
            if entry.version <= version:
                continue
            try:
                decode(self._verified(entry))
            except (CheckpointError, OSError):
                continue
            raise CheckpointError(
                f"the weights of update {version:,} are older than those of the checkpoint "
                f"{entry.file}, update {entry.version:,}, and would replace it; run the same "
                "command again to resume from that checkpoint"
            )

    def _keep_wanted(self, entries: list[CheckpointEntry]) -> None:
        """Write the manifest of the entries to keep, then remove the files of the others. In this
        order a kill leaves too many files, never too few."""
        kinds = _kinds(entries, self.keep)
        wanted = [dataclasses.replace(e, kinds=kinds[e.file]) for e in entries if kinds[e.file]]
        manifest = {"entries": [dataclasses.asdict(entry) for entry in wanted]}
        write_atomically(self._manifest, (to_json(manifest, indent=1) + "\n").encode())
        for entry in entries:
            if not kinds[entry.file]:
                (self.folder / entry.file).unlink(missing_ok=True)

    def load(
        self, which: Literal["latest", "best"] = "latest", *, log: Log
    ) -> tuple[Checkpoint, CheckpointEntry] | None:
        """Return the latest or the best (see `_by_rating`) checkpoint and its entry; None if no
        checkpoint was ever saved. Without a rated checkpoint the latest stands in for the best.

        A damaged checkpoint is refused and the one before it is returned; ``log`` gets a message
        about each of these cases. Raises CheckpointError if there are checkpoints but no valid one:
        a run never starts again from zero without notice.
        """
        problems: list[str] = []

        def note(problem: str) -> None:
            problems.append(problem)
            log(problem)

        entries, traces = self._entries(note)
        for entry in sorted(entries, key=_by_rating if which == "best" else _by_number)[::-1]:
            try:
                checkpoint = decode(self._verified(entry))
            except (CheckpointError, OSError) as error:
                note(f"checkpoint {entry.file} is refused: {error}")
                continue
            if problems:
                log(f"using checkpoint {entry.file} of {entry.env_steps} env steps")
            if which == "best" and not entry.is_rated:
                log(
                    f"no checkpoint in {self.folder} has a mean return yet, which takes 100 "
                    "finished episodes or an evaluation (--evaluate-interval); using the latest"
                )
            return checkpoint, entry
        if not traces:
            return None
        raise CheckpointError(
            f"there is no valid checkpoint in {self.folder} ({'; '.join(problems) or 'all lost'}); "
            "restore one from a backup, or start anew in another run folder"
        )

    def _verified(self, entry: CheckpointEntry) -> bytes:
        """Return the bytes of an entry's file. Raises CheckpointError if they differ from what was
        written."""
        data = (self.folder / entry.file).read_bytes()
        if len(data) != entry.size:
            raise CheckpointError(f"it has {len(data)} bytes of {entry.size}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise CheckpointError("its checksum is wrong")
        return data

    def _entries(self, note: Log) -> tuple[list[CheckpointEntry], bool]:
        """Return all entries, oldest first, and whether anything was ever saved here.

        For files that the manifest does not list (it is lost or damaged, or the run was killed
        before it was written) the entry in their header is used.
        """
        try:
            entries = self._listed()
        except CheckpointError as error:
            note(str(error))
            entries = []
        listed = {entry.file for entry in entries}
        files = [path for path in self.folder.glob("*.safetensors") if path.name not in listed]
        for path in sorted(files):
            try:
                entries.append(_read_entry(path))
            except (CheckpointError, OSError) as error:
                note(f"checkpoint {path.name} is refused: {error}")
        traces = bool(entries or files) or self._manifest.exists()
        return sorted(entries, key=_by_number), traces

    def _listed(self) -> list[CheckpointEntry]:
        """Return the manifest's entries. Raises CheckpointError if it is damaged."""
        try:
            lines = json.loads(self._manifest.read_bytes())["entries"]
            entries = [from_plain(CheckpointEntry, line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self._manifest.name} is damaged ({error})") from error
        if not all(_FILE_NAME.fullmatch(entry.file) for entry in entries):
            raise CheckpointError(f"{self._manifest.name} names files that are not checkpoints")
        return entries


def _entry(name: str, data: bytes, about: dict[str, Any]) -> CheckpointEntry:
    """Return the manifest's entry for a file. Raises ConfigError if ``about`` has other fields."""
    of_file = {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return from_plain(CheckpointEntry, {**about, **of_file})


def _read_entry(path: Path) -> CheckpointEntry:
    """Return the entry that a checkpoint file has in its header. Raises CheckpointError if the file
    does not match its name."""
    data = path.read_bytes()
    name = _FILE_NAME.fullmatch(path.name)
    if name is None or not hashlib.sha256(data).hexdigest().startswith(name[1]):
        raise CheckpointError("its checksum is wrong")
    try:
        return _entry(path.name, data, decode_about(data))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"its header has no valid manifest entry ({error})") from error


def _kinds(entries: list[CheckpointEntry], keep: int) -> dict[str, tuple[str, ...]]:
    """Return the reasons to keep each entry, by file name; empty for entries to remove."""
    by_number = sorted(entries, key=_by_number)
    latest = {entry.file for entry in by_number[-keep:]}
    best = max(entries, key=_by_rating)
    kinds: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        is_best = entry is best and entry.is_rated
        reasons = {
            "latest": entry.file in latest,
            "best": is_best,
            "milestone": entry.milestone,
        }
        kinds[entry.file] = tuple(kind for kind, holds in reasons.items() if holds)
    return kinds


def _by_number(entry: CheckpointEntry) -> int:
    return entry.number


def _by_rating(entry: CheckpointEntry) -> tuple[float, float, int, int]:
    """Return a sort key by which the best checkpoint is last.

    Evaluated checkpoints come after those with only a return of training, and these after unrated
    ones. Of several checkpoints after the same evaluation the first is the best, because it is
    nearest to the evaluated weights; of other equals the latest is the best."""
    if entry.eval_return_mean is not None:
        return 2, entry.eval_return_mean, entry.eval_env_steps or 0, -entry.number
    if entry.return_mean is not None:
        return 1, entry.return_mean, 0, entry.number
    return 0, 0.0, 0, entry.number


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ignore(_: str) -> None:
    """Drop a message about the manifest: saving writes a new manifest, without the fault."""

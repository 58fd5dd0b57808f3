"""What the members of a population of runs leave for each other and for the launcher, as files in a
folder: their states with checkpoints, and their parts of the lineage.

    published/0.json                           the newest state of member 0
    published/0-000000020480-<sha>.safetensors the checkpoint that it names
    lineages/0.jsonl                           what has happened to member 0
    lineage.jsonl                              what has happened to all

A member replaces its files atomically and without a lock. A checkpoint is a hard link to that of
the member's run (a copy where the file system has no links), so that the run may remove its own
name of the file. Of the published ones the two newest are kept: another member, which has just read
the older state, still finds its checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sampleforge.config import from_plain, typed
from sampleforge.populations import lineage
from sampleforge.populations.rounds import Member
from sampleforge.run.folder.checkpoint import Checkpoint, CheckpointError, decode
from sampleforge.runtime.files import TEMPORARY_SUFFIX, write_json
from sampleforge.topologies.config import AnyConfig

RUNS, PUBLISHED, LINEAGES = "members", "published", "lineages"
"""Folders of a population: the run folders of its members, what they publish, their lineages."""
_CHECKPOINT = re.compile(r"\d{12,}-([0-9a-f]{16})\.safetensors")
_TRIES = 5
"""Times that a state is read again because its checkpoint was replaced meanwhile."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}


def run_folder(folder: Path, member: str) -> Path:
    """Return the run folder of a member of the population in ``folder``."""
    return folder / RUNS / member


def lineage_file(folder: Path, member: str) -> Path:
    """Return the file with a member's own part of the lineage."""
    return folder / LINEAGES / f"{member}.jsonl"


@dataclass(frozen=True)
class Published:
    """The state of a member when it wrote the ``checkpoint`` (file name in its run's folder).

    ``round``: its number of rounds so far; ``objective``: mean return of its last ``episodes`` of
    its own (None: there are too few); ``done``: it has reached the stop condition; ``learned``: the
    env steps that have led to its weights (None: its learner does not count them); ``until``: the
    stop conditions that it ended with, as they are typed (empty: it is not done, or an earlier
    version has written it); ``decided``: the change that the round makes has been made, or it makes
    none.
    """

    member: str
    round: int
    env_steps: int
    wall_s: float
    objective: float | None
    episodes: int
    checkpoint: str
    done: bool = False
    learned: int | None = None
    hyperparameters: dict[str, float | bool | None] = field(default_factory=dict)
    until: tuple[str, ...] = ()
    decided: bool = True

    def ended_by(self, config: AnyConfig) -> Published:
        """Return the state of the member when a stop condition of ``config`` has ended its run."""
        return replace(self, done=True, until=_stop_conditions(config))

    def is_finished(self, config: AnyConfig) -> bool:
        """Return whether the member has nothing more to do: it is done, and the stop conditions of
        ``config`` are those that it ended with, or their limits have been reached."""
        steps, seconds = config.train_for_env_steps, config.train_for_seconds
        reached = steps is not None and self.env_steps >= steps
        reached = reached or (seconds is not None and self.wall_s >= seconds)
        return self.done and (reached or self.until == _stop_conditions(config))

    def as_member(self) -> Member:
        """Return the member as the rules see it."""
        return Member(self.member, self.objective, self.hyperparameters, self.env_steps)


def _stop_conditions(config: AnyConfig) -> tuple[str, ...]:
    """Return what ends a member's run, as it is typed."""
    limits = {n: getattr(config, n) for n in ("train_for_env_steps", "train_for_seconds")}
    given = [typed(name, limit) for name, limit in limits.items() if limit is not None]
    return (*given, *(typed("stop", (text,)) for text in config.stop))


class PublishedStates:
    """The published states in ``folder``. ``log`` gets messages about damaged files."""

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log

    def publish(self, state: Published, checkpoints: Path) -> None:
        """Publish the state of a member whose run has its checkpoints in ``checkpoints``. Only one
        process publishes for a member at a time. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{state.member}-{state.checkpoint}"
        _link(checkpoints / state.checkpoint, self._folder / name)
        before = self.of(state.member)
        write_json(self._folder / f"{state.member}.json", asdict(state), indent=None)
        kept = {name} if before is None else {name, f"{state.member}-{before.checkpoint}"}
        for path in self._folder.glob(f"{state.member}-*.safetensors"):
            own = _CHECKPOINT.fullmatch(path.name[len(state.member) + 1 :])
            if own and path.name not in kept:
                path.unlink(missing_ok=True)
        for pattern in (f".{state.member}-", f".{state.member}.json."):
            for leftover in self._folder.glob(f"{pattern}*{TEMPORARY_SUFFIX}"):
                leftover.unlink(missing_ok=True)  # of a member that was killed

    def settle(self, state: Published) -> None:
        """Publish a state again, as ``decided``. Raises OSError."""
        plain = asdict(replace(state, decided=True))
        write_json(self._folder / f"{state.member}.json", plain, indent=None)

    def read(self) -> dict[str, Published]:
        """Return the newest state of each member that has published one, by its id."""
        states = {}
        for path in sorted(self._folder.glob("*.json")):
            with suppress(FileNotFoundError):
                state = self._read(path)
                if state is not None:
                    states[state.member] = state
        return states

    def of(self, member: str) -> Published | None:
        """Return the newest state of one member, None if it has published none."""
        with suppress(FileNotFoundError):
            return self._read(self._folder / f"{member}.json")
        return None

    def _read(self, path: Path) -> Published | None:
        try:
            plain = json.loads(path.read_bytes())
            state = from_plain(Published, _mapping(plain), str(path))
            if state.member != path.stem or not _CHECKPOINT.fullmatch(state.checkpoint):
                raise ValueError("it is not of this member")
        except (ValueError, TypeError, RecursionError) as error:
            self._log(f"{path.name} is ignored: {error}")
            return None
        return state

    def fetch(self, member: str) -> tuple[Published, Checkpoint] | None:
        """Return the newest state of a member and its checkpoint, whole and verified; None if there
        is none. The files may be replaced meanwhile."""
        for _ in range(_TRIES):
            try:
                state = self._read(self._folder / f"{member}.json")
                if state is None:
                    return None
                data = (self._folder / f"{member}-{state.checkpoint}").read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:  # ESTALE: it was removed on another machine
                self._log(f"the checkpoint of member {member} cannot be read: {error}")
                continue
            try:
                return state, _verified(state.checkpoint, data)
            except CheckpointError as error:
                self._log(f"the checkpoint of member {member} is refused: {error}")
        return None


def _verified(name: str, data: bytes) -> Checkpoint:
    """Return the checkpoint in ``data``, whose file name has the beginning of its checksum."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or not hashlib.sha256(data).hexdigest().startswith(match[1]):
        raise CheckpointError("its checksum is wrong")
    return decode(data)


def _mapping(plain: Any) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise ValueError("it holds no mapping")
    return plain


def _link(source: Path, target: Path) -> None:
    """Make ``target`` a hard link to ``source``, or an atomic copy where there are no links."""
    try:
        os.link(source, target)
    except FileExistsError:
        return  # the name has the checksum: it is the same file
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)


class MergedLineage:
    """Appends to lineage.jsonl the events of all members as they appear in the members' own files.

    Each file has one writer at a time. The number of a member's lines that have been merged is that
    of its lines in lineage.jsonl, so that a launcher which is killed leaves nothing to repair.
    """

    def __init__(self, folder: Path, members: Sequence[str]) -> None:
        (folder / LINEAGES).mkdir(exist_ok=True)
        self._folder, self._members = folder, members
        self._path = folder / lineage.FILE
        self._merged = dict.fromkeys(members, 0)
        if self._path.is_file():
            for event in lineage.read(self._path):
                self._merged[event["member"]] = self._merged.get(event["member"], 0) + 1
        self._sizes = dict.fromkeys(members, 0)
        lineage.Lineage(self._path).close()  # cuts off an incomplete line

    def update(self) -> None:
        """Append the new events of all members."""
        for member in self._members:
            path = lineage_file(self._folder, member)
            size = path.stat().st_size if path.is_file() else 0
            if size == self._sizes[member]:
                continue
            self._sizes[member] = size
            self._append(member, lineage.read(path))

    def _append(self, member: str, events: list[dict[str, Any]]) -> None:
        merged = lineage.Lineage(self._path)
        try:
            for event in events[self._merged[member] :]:
                merged.append(event)
                self._merged[member] += 1
        finally:
            merged.close()

    def read(self) -> list[dict[str, Any]]:
        """Return all merged events."""
        return lineage.read(self._path)

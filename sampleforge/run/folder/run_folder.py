"""The folder of one run: its files, its lock, and the rules for resuming."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from sampleforge.config import ConfigError, typed
from sampleforge.names import nearest
from sampleforge.run.folder import stored_config
from sampleforge.run.folder.files import CannotWrite, unusable, writing
from sampleforge.run.folder.trust import CODE_TO_ACT, Trust, check_places, trusted
from sampleforge.runtime.files import TEMPORARY_SUFFIX, to_json, write_atomically
from sampleforge.runtime.folder_lock import lock_folder

if TYPE_CHECKING:
    import gymnasium as gym

    from sampleforge.spec import EnvSpec

C = TypeVar("C")

_FILES = (
    "config.yaml",
    "spec.json",
    "metrics.jsonl",
    "summary.json",
    "benchmark.json",
    "log.txt",
    "tb",
    "checkpoints",
    "snapshots",
    "self_play.json",
    "workers.json",
    "metrics.csv",
    "episodes.csv",
    ".lock",
    ".reserve",
)
"""The files and folders that a run keeps in its folder."""


def best_member(summary: Mapping[str, Any]) -> str | None:
    """Return the policy that summary.json names as the best one of a population; None if it names
    none."""
    best = summary.get("best")
    return next((name for name in summary.get("policies", ()) if name == best), None)


RESERVE = 1 << 18
"""Bytes of disk that a run reserves for its summary.json."""


class Resumed(NamedTuple, Generic[C]):
    """The config of a run that resumes: as it was ``asked`` for, with the settings that the run was
    given before and now are left at their defaults; as it is ``used``, also with the values (seed,
    batch size) that the run had chosen when it started. ``notes``: what the user is to know;
    ``changed``: the new values of what affects the learning, by name."""

    asked: C
    used: C
    notes: list[str]
    changed: Mapping[str, Any]


class RunFolderGone(CannotWrite):
    """The run folder was removed or moved while the run wrote to it."""


def _digest(plain: Mapping[str, Any]) -> str:
    """Return the checksum of plain values: the SHA-256 of their JSON."""
    return hashlib.sha256(to_json(plain).encode()).hexdigest()


class RunFolder:
    """The files of one run. Their permissions follow the umask; no file contains an absolute
    path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.spec_file = self.path / "spec.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.episodes_file = self.path / "episodes.csv"
        self.summary_file = self.path / "summary.json"
        self.benchmark_file = self.path / "benchmark.json"
        self.log_file = self.path / "log.txt"
        self.workers_file = self.path / "workers.json"
        self.tensorboard = self.path / "tb"
        self.scratch = self.path / "scratch"
        self.reserve = self.path / ".reserve"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.self_play_file = self.path / "self_play.json"
        self.lineage_file = self.path / "lineage.jsonl"
        self._lock: int | None = None
        self._is_prepared = False
        self._before: dict[Path, bytes] = {}
        self._made: Path | None = None
        self._made_above: list[Path] = []  # the folders above it, the nearest first
        """What `create` has made: the folder, or the lock file in it."""

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Return the folder of a run that was started, for reading. Raises ConfigError if ``path``
        is not a run folder, or if a link in it leads out of it."""
        folder = cls(path)
        try:
            check_places(folder.path, _FILES)
            if folder.config_file.is_file():
                return folder
        except OSError as error:
            raise ConfigError(f"{path} is not a run folder: {error.strerror}") from error
        parent = folder.path.parent
        runs = [config.parent.name for config in parent.glob("*/config.yaml")]
        near = [str(parent / name) for name in nearest(folder.path.name, runs)]
        hint = f". Did you mean {near[0]}?" if near else ""
        lacks = "it has no config.yaml" if folder.path.is_dir() else "there is no such folder"
        raise ConfigError(f"{path} is not a run folder: {lacks}{hint}")

    def create(self) -> None:
        """Create the folder unless it exists, and lock it against other runs. Nothing that is in it
        changes before `prepare`.

        The kernel releases the lock when this process ends, in any way. Raises ConfigError if
        another run has the lock, the folder cannot be created, or a link in it leads out of it.
        """
        try:
            made = next((p for p in (self.path, self.path / ".lock") if not p.exists()), None)
            above = [folder for folder in self.path.parents if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._made, self._made_above = made, above
            check_places(self.path, _FILES)
            self._lock = lock_folder(self.path, "--run-dir")
        except OSError as error:
            self.close()
            raise unusable(self.path, error) from error

    def prepare(self) -> None:
        """Make the folders that a run writes to, and remove what a killed one has left. Raises
        ConfigError if that is not possible."""
        try:
            self.checkpoints.mkdir(exist_ok=True)
            shutil.rmtree(self.scratch, ignore_errors=True)
            for left in self.path.glob(f".{self.workers_file.name}.*{TEMPORARY_SUFFIX}"):
                left.unlink()
            self.scratch.mkdir()
            self._is_prepared = True
            described = (self.config_file, self.spec_file)
            self._before = {file: file.read_bytes() for file in described if file.exists()}
            with self.reserve.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, RESERVE)
        except OSError as error:
            raise unusable(self.path, error) from error

    def discard(self) -> None:
        """Remove what `create` has made, the folder or the lock file in it: the run did not
        begin. Folders above it stay if there is something in them."""
        if self._made == self.path:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                for folder in self._made_above:
                    folder.rmdir()
        elif self._made is not None:
            self._made.unlink(missing_ok=True)

    def put_back(self) -> None:
        """Write config.yaml and spec.json as they were before `prepare`. Raises OSError."""
        for file, data in self._before.items():
            write_atomically(file, data)

    def check_there(self) -> None:
        """Raise RunFolderGone unless this is still the folder that `create` has locked."""
        assert self._lock is not None, "create() comes first"
        try:
            there = os.path.samestat(os.stat(self.path / ".lock"), os.fstat(self._lock))
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise RunFolderGone(
                f"The run folder {self.path} was removed or moved while the run wrote to it"
            )

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint of any policy, or a list that names one."""
        names = ("*.safetensors", "manifest.json")
        return any(found for name in names for found in self.checkpoints.rglob(name))

    def policy_ids(self) -> list[str]:
        """Return the ids of the policies of which there are checkpoints, in a run with several;
        none in a run with one."""
        files = self.checkpoints.glob("*/*")
        of_checkpoints = (
            file for file in files if file.suffix == ".safetensors" or file.name == "manifest.json"
        )
        return sorted({file.parent.name for file in of_checkpoints})

    def policy_checkpoints(
        self, policy: str | None, remedy: str = "--policy {0}, or policy={0!r} in Python"
    ) -> Path:
        """Return the folder of the checkpoints of a policy: of the only one that is trained (None),
        or of the one with this id in a run with several, which may be frozen. Raises ConfigError if
        it does not say which of several (``remedy``: how, with the id for {0}), or names
        another."""
        several = self.policy_ids()
        if policy in several:
            return self.checkpoints / policy
        if policy is None and not several:
            return self.checkpoints
        if policy is not None and (self.snapshots / policy).is_dir():
            return self.snapshots / policy
        if not several:
            raise ConfigError(f"{self.path} has one policy, and none called {policy!r}")
        named = several[0]
        with suppress(OSError, ValueError, TypeError, AttributeError):  # missing or damaged
            best = best_member(json.loads(self.summary_file.read_bytes()))
            named = best if best in several else named
        raise ConfigError(
            f"{self.path} has the policies {', '.join(several)}; say which of them: "
            + remedy.format(named)
        )

    def close(self) -> None:
        """Remove the files that simulators have written, and release the lock."""
        if self._is_prepared:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.reserve.unlink(missing_ok=True)
            self._is_prepared = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_config(self, resolved: Any, asked: Any) -> None:
        """Write config.yaml: every field of the ``resolved`` config, the versions and the commit.

        ``asked`` is the config as the user gave it, in which some fields are not set (a seed of
        None). With it the same command is recognised when the run is resumed.
        """
        with writing(self.config_file):
            stored_config.write_config(self.config_file, resolved, asked)

    def read_config(self, cls: type[C], trust: Trust, used: Sequence[str] = CODE_TO_ACT) -> C:
        """Return the config of this run as ``cls``. Raises ConfigError if it does not fit, or if
        one of the fields ``used`` names code that ``trust`` does not cover."""
        config = stored_config.read_config(self.config_file, cls)[0]
        return trusted(self.config_file, config, trust, used)

    def write_spec(self, spec: EnvSpec) -> None:
        """Write the spec of the environment to spec.json, so that a policy can be loaded without
        the environment. Raises ConfigError for a spec that has no JSON form."""
        from sampleforge.env.spec_json import spec_to_plain

        plain = spec_to_plain(spec)
        text = to_json({**plain, "sha256": _digest(plain)}, indent=1)
        with writing(self.spec_file):
            write_atomically(self.spec_file, (text + "\n").encode())

    def read_spec(self) -> EnvSpec | None:
        """Return the spec of the environment of this run; None if there is no spec.json any more.
        Raises ConfigError, which names the value, if spec.json is damaged."""
        from sampleforge.env.spec_json import spec_from_plain

        try:
            plain = json.loads(self.spec_file.read_bytes())
            stored = plain.pop("sha256", None) if isinstance(plain, dict) else None
            if stored != _digest(plain):
                raise ValueError("its checksum is wrong")
            return spec_from_plain(plain)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.spec_file}: {error}; restore the file as the run wrote it, or remove it: "
                "the environment is then constructed once to learn its spaces"
            ) from error

    @property
    def algo(self) -> str:
        """Name of the algorithm of this run. Raises ConfigError if config.yaml cannot be read."""
        return str(stored_config.read_yaml(self.config_file).get("algo"))

    def resumes(self, config: Any) -> bool:
        """Return whether a run with ``config`` resumes from a checkpoint in this folder. Raises
        ConfigError if ``config.resume`` demands a checkpoint and there is none, or forbids one and
        there is one."""
        has_checkpoint = self.has_checkpoint
        if config.resume == "must" and not has_checkpoint:
            raise ConfigError(
                f"--resume must: there is no checkpoint in {self.path}; give the folder of "
                "an earlier run, or --resume auto to start a new run there"
            )
        if config.resume == "never" and has_checkpoint:
            raise ConfigError(
                f"--resume never: there are checkpoints in {self.path}; give another "
                "--run-dir, or --resume auto to resume from them"
            )
        return has_checkpoint

    def check_resume(self, config: C, resolve: Callable[[C], C] = lambda c: c) -> Resumed[C]:
        """Return the configs to resume with. ``resolve`` resolves the defaults of a config for the
        environment. Raises ConfigError, which lists the changes, if the run cannot go on with
        ``config``."""
        before, left_open = stored_config.read_config(self.config_file, type(config))
        asked, kept = stored_config.inherited(before, left_open, config)
        resolved = resolve(asked)
        stored = stored_config.with_ranks_of(before, left_open, asked, resolved)
        changed = stored_config.changes(stored, left_open, asked, resolved)
        if changed:
            lines = "\n  ".join(changed)
            raise ConfigError(
                f"the run in {self.path} cannot go on with these changes (old -> new), by which "
                f"its networks, stored experience, environment or policies are made:\n  {lines}\n"
                "undo them to resume it, or start a new run with another --run-dir"
            )
        notes = [f"As in the run before: {flag}" for flag in kept]
        new = stored_config.new_settings(before, left_open, asked)
        notes += [f"Changed for this part of the run: {flag}" for flag in new]
        notes += stored_config.notes_of_evaluations(stored, left_open, asked)
        learning = stored_config.changed_learning(stored, left_open, asked)
        old = stored_config.flat_fields(stored)
        notes += [
            f"Changed from here on: {typed(name, value)} (was {old[name]})"
            for name, value in learning.items()
        ]
        notes += stored_config.change_of_ranks(before, stored)
        used = stored_config.adopt(stored, left_open, asked)
        rate = stored_config.flat_fields(used).get("lr_schedule")
        if "lr_schedule" not in learning and rate != old.get("lr_schedule"):
            notes.append(
                "The learning rate is constant from here on: without --train-for-env-steps or "
                "--train-for-seconds there is no end until which it could fall"
            )
        used = stored_config.with_rows_of(stored, left_open, asked, resolved, used)
        return Resumed(asked, used, notes, learning)

    def check_spec(self, spec: EnvSpec) -> None:
        """Check that a run with ``spec`` can go on with what was learned here. Raises ConfigError,
        which names each leaf that differs, as it was and as it is."""
        stored = self.read_spec()
        changed = [] if stored is None else differences(stored, spec)
        if changed:
            lines = "\n  ".join(changed)
            raise ConfigError(
                f"the run in {self.path} was trained in another environment (old -> new):\n  "
                f"{lines}\nput the environment back to resume it, or start a new run with another "
                "--run-dir"
            )

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json; on a full disk, in the place of what `prepare` has reserved."""
        data = (to_json(summary, indent=2) + "\n").encode()
        try:
            write_atomically(self.summary_file, data)
        except OSError:
            with writing(self.summary_file):
                self._write_into_reserve(data)
                self.reserve.replace(self.summary_file)

    def _write_into_reserve(self, data: bytes) -> None:
        with self.reserve.open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def write_benchmark(self, result: Mapping[str, Any]) -> None:
        """Write benchmark.json."""
        write_atomically(self.benchmark_file, (to_json(result, indent=2) + "\n").encode())

    def write_workers(self, states: Mapping[str, Any]) -> None:
        """Write workers.json, without waiting for the disk: the next report replaces it."""
        with writing(self.workers_file):
            write_atomically(self.workers_file, (to_json(states) + "\n").encode(), sync=False)


def differences(old: EnvSpec, new: EnvSpec) -> list[str]:
    """Return a line ``leaf: old -> new`` for each leaf of the spaces that differs between two
    specs, and for agents, masks and frame stacks: a network that was trained with one does not fit
    the other, or its actions mean something else there.

    So it is with the frame skip, by which env frames are counted. The rest may differ: time limits,
    protocol, reward shaping, how rows are stepped.
    """
    groups = [[", ".join(group.agents) for group in spec.agent_groups] for spec in (old, new)]
    if groups[0] != groups[1]:
        return ["agents: " + " -> ".join("; ".join(names) or "one" for names in groups)]
    lines = []
    for before, after in zip(old.agent_groups, new.agent_groups, strict=True):
        of = f"{', '.join(before.agents)}: " if old.other_groups else ""
        facts = [_facts(spec) for spec in (before, after)]
        lines += [
            f"{of}{name}: {_shown(facts[0].get(name))} -> {_shown(facts[1].get(name))}"
            for name in dict.fromkeys([*facts[0], *facts[1]])
            if _plain(facts[0].get(name)) != _plain(facts[1].get(name))
        ]
    return lines


def _facts(spec: EnvSpec) -> dict[str, Any]:
    """Return what has to stay, by name: the leaf spaces, the stacks and the place of the mask."""
    from sampleforge.spec import ACTION, OBSERVATION, leaves

    assert spec.spaces is not None, "a run has the spaces of its environment"
    stacks = {f"frame stack of {n}": leaf.stack for n, leaf in spec.observations.items()}
    return {
        **{f"observation {n}": leaf for n, leaf in leaves(spec.spaces.observation, OBSERVATION)},
        **{f"action {n}": leaf for n, leaf in leaves(spec.spaces.action, ACTION)},
        **{name: f"padded with {stack}" for name, stack in stacks.items() if stack},
        **({"action mask": "in the info"} if spec.spaces.mask_in_info else {}),
        "frame skip": str(spec.frame_skip),
    }


def _plain(fact: Any) -> Any:
    """Return a fact as values that are equal for equal facts. The text of a large space is not: it
    leaves out bounds."""
    from sampleforge.env.spec_json import space_to_plain

    return fact if fact is None or isinstance(fact, str) else space_to_plain(fact)


def _shown(fact: str | gym.Space[Any] | None) -> str:
    return "none" if fact is None else " ".join(str(fact).split())

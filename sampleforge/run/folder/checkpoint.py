"""The checkpoints of a run: what one holds, its file, and the store that writes, verifies, selects
and prunes them.

A file is safetensors, whose header holds the plain values as JSON. No part of it can hold code:
tensors are raw numbers, and everything else is JSON. Every file is named after its own SHA-256, so
that it can be verified without the manifest. Its header holds its entry of the manifest, so that a
lost manifest can be rebuilt from the files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import safetensors
import safetensors.torch
import torch

from sampleforge.config import ConfigError, UserError, from_plain
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.versions import translated_tensors
from sampleforge.runtime.files import TEMPORARY_SUFFIX, to_json, write_atomically

if TYPE_CHECKING:
    import torch

    from sampleforge.algorithms.learning import Learner

FORMAT = "1"
_MALFORMED = (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    RecursionError,  # of torch; of absurdly nested JSON
)


class CheckpointError(UserError, ValueError):
    """A checkpoint cannot be used, or there is none where there must be one."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: tensors of any shape and dtype by name, and ``state``, plain
    values of JSON (str keys, lists but no tuples), with integers of any size and exact floats."""

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


def encode(checkpoint: Checkpoint, about: dict[str, Any]) -> bytes:
    """Return the bytes of a file with a checkpoint and plain values ``about`` it, its entry in the
    manifest.

    Raises TypeError for a state that is not plain, CheckpointError for a tensor that is not finite.
    """
    _assert_finite(checkpoint.tensors)
    # Clones, because safetensors refuses views of one storage, and parameters often are.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in checkpoint.tensors.items()
    }
    _assert_plain(checkpoint.state, "state")
    header = {"format": FORMAT, "state": json.dumps(checkpoint.state), "about": json.dumps(about)}
    return safetensors.torch.save(tensors, header)


def _assert_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError for NaN and inf: a run that resumes from them learns nothing."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = tensor[~torch.isfinite(tensor)]
            raise CheckpointError(
                f"tensor {name!r} holds {bad.flatten()[0].item()} ({bad.numel()} of its "
                f"{tensor.numel()} elements are not finite); if it is a constant of an encoder or "
                "head of yours, such as a mask, use register_buffer(..., persistent=False)"
            )


def decode(data: bytes) -> Checkpoint:
    """Return the checkpoint that `encode` has encoded. Raises CheckpointError for other bytes."""
    header = _header(data)
    try:
        tensors = safetensors.torch.load(data)
        state = json.loads(header["state"])
    except _MALFORMED as error:
        raise CheckpointError(f"it holds no checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError("its state is not a mapping")
    _assert_finite(tensors)
    return Checkpoint(translated_tensors(tensors), state)


def decode_about(data: bytes) -> dict[str, Any]:
    """Return the ``about`` of `encode`. Raises CheckpointError if there is none."""
    try:
        about = json.loads(_header(data)["about"])
    except _MALFORMED as error:
        raise CheckpointError(f"its header has no valid manifest entry ({error})") from error
    if not isinstance(about, dict):
        raise CheckpointError("its header has no valid manifest entry")
    return about


def _header(data: bytes) -> dict[str, Any]:
    """Return the text values of a safetensors header. The file begins with the length of the
    header, 8 bytes, little endian; the header is JSON."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise CheckpointError("it is truncated, or not a safetensors file")
    try:
        header = json.loads(data[8 : 8 + length])["__metadata__"]
    except _MALFORMED as error:
        raise CheckpointError(f"its header is damaged ({type(error).__name__})") from error
    if not isinstance(header, dict) or "format" not in header:
        raise CheckpointError("it is not a SampleForge checkpoint")
    if header["format"] != FORMAT:
        raise CheckpointError(
            f"it is of format {header['format']}, and this version of SampleForge reads format "
            f"{FORMAT}; use the version that wrote it"
        )
    return header


def _assert_plain(value: Any, where: str) -> None:
    """Raise TypeError for a value that JSON cannot hold, or would change without an error (a tuple,
    a key that is not a string). ``where``: the dotted name of the value."""
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be strings")
            _assert_plain(child, f"{where}.{key}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _assert_plain(child, f"{where}[{index}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(
            f"{where} is a {type(value).__name__}; a checkpoint's state holds only dict, list, "
            "str, int, float, bool and None (arrays belong to its tensors)"
        )


Log = Callable[[str], None]

_FILE_NAME = re.compile(r"\d{12,}-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class CheckpointEntry:
    """The manifest's entry of one checkpoint.

    ``sha256`` and ``size`` (bytes) are of the whole file; ``number`` counts the checkpoints of the
    run. ``return_mean`` is the mean return of training, None until the window of episodes is full.
    ``eval_return_mean`` is the result of the last evaluation before the checkpoint, with the
    weights at ``eval_env_steps``. ``kinds``: the reasons to keep it (latest, best, milestone).
    ``copies``: how often the member of a population had copied another's weights by then."""

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
    copies: int = 0

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
        copies: int = 0,
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
            "copies": copies,
        }
        data = encode(checkpoint, about)
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{env_steps:012d}-{digest[:16]}.safetensors"
        write_atomically(path, data)
        self._keep_wanted(self._without_lost_best([*entries, _entry(path.name, data, about)]))
        return path

    def save_state(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Write a checkpoint of a learner's ``tensors``, in the learner's process; ``state`` has
        the rest of it, with what `save` is told."""
        self.save(
            Checkpoint(tensors, state),
            env_steps=state["env_steps"],
            version=state["learner"]["version"],
            return_mean=state["return_mean"],
            eval_return_mean=state["eval_return_mean"],
            eval_env_steps=state["eval_env_steps"],
            milestone=state["milestone"],
            copies=state["copies"],
        )

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

    def _without_lost_best(self, entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
        """Return the entries without those that are rated best and whose files are lost or damaged:
        no other one would be kept as the best any more."""
        newest = max(entries, key=_by_number)
        while (best := _ranked(entries)[-1]) is not newest and best.is_rated:
            try:
                self._verified(best)
            except (CheckpointError, OSError):
                entries = [entry for entry in entries if entry is not best]
            else:
                break
        return entries

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
        """Return the latest or the best (see `_ranked`) checkpoint and its entry; None if no
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
        for entry in (_ranked(entries) if which == "best" else entries)[::-1]:
            try:
                checkpoint = decode(self._verified(entry))
            except (CheckpointError, OSError) as error:
                note(f"checkpoint {entry.file} is refused: {error}")
                continue
            if problems:
                log(f"using checkpoint {entry.file} of {entry.env_steps} env steps")
            if which == "best" and not entry.is_rated:
                since = " since the last copy" if entry.copies else ""
                log(
                    f"no checkpoint in {self.folder}{since} has a mean return yet, which takes 100 "
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
    best = _ranked(entries)[-1]
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


def _ranked(entries: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    """Return the entries with the best one last. Those of weights that a copy has replaced since,
    in a population, come before all others, whatever their rating."""
    copies = max(entries, key=_by_number).copies if entries else 0
    return sorted(entries, key=lambda entry: (entry.copies == copies, *_by_rating(entry)))


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


def check_empty(path: str | Path) -> Path:
    """Return the absolute path of a folder to copy to. Raises ConfigError if there is a file of
    that name, or a folder that is not empty."""
    to = Path(path).absolute()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not an empty folder; give another one to save to")
    return to


def copy_newest(folder: RunFolder, stores: Sequence[CheckpointStore], to: Path) -> None:
    """Copy config.yaml, spec.json, the newest checkpoint of each of ``stores``, the weights of
    opponents and the lineage of a population into the folder ``to`` (see `check_empty`).

    It is then a run folder: it can be loaded, evaluated, exported, and trained from. The replay and
    the metrics of the run are not copied. Raises OSError if it cannot be written.
    """
    copy = RunFolder(to)
    copy.checkpoints.mkdir(parents=True)
    for store in stores:
        found = store.load(log=lambda text: None)
        assert found is not None, "a checkpoint was written before"
        where = copy.path / store.folder.relative_to(folder.path)
        where.mkdir(exist_ok=True)
        shutil.copyfile(store.folder / found[1].file, where / found[1].file)
    if folder.snapshots.is_dir():
        shutil.copytree(folder.snapshots, copy.snapshots)
    if folder.lineage_file.is_file():
        shutil.copyfile(folder.lineage_file, copy.lineage_file)
    shutil.copyfile(folder.spec_file, copy.spec_file)
    shutil.copyfile(folder.config_file, copy.config_file)  # last: it makes a run folder of it


class ResumeCheckpoint:
    """Loads the latest checkpoint: its weights in the driver, the complete state in the learner.
    ``changed``: new values of hyperparameters, which take the place of those in the state."""

    def __init__(self, store: CheckpointStore, changed: Mapping[str, Any] | None = None) -> None:
        self._store = store
        self._changed = changed or {}

    def weights(self, model: torch.nn.Module) -> int:
        """Load the weights of the checkpoint into ``model``; return their policy version. Raises
        ConfigError if they are those of another network."""
        checkpoint = self._load()
        try:
            load_weights(model, model_tensors(checkpoint.tensors))
        except RuntimeError as error:
            raise ConfigError(
                f"the checkpoint in {self._store.folder} is of another network: "
                f"{' '.join(str(error).split())}; undo the change of the encoder or the model, or "
                "start a new run with another --run-dir"
            ) from error
        return int(checkpoint.state["learner"]["version"])

    def learner(self, learner: Learner) -> None:
        """Load the complete state of the checkpoint into ``learner``."""
        checkpoint = self._load()
        learner.load(checkpoint.tensors, checkpoint.state["learner"])

    def plain(self) -> dict[str, Any]:
        """Return the plain values of the learner's state."""
        plain: dict[str, Any] = self._load().state["learner"]
        return plain

    def _load(self) -> Checkpoint:
        loaded = self._store.load(log=lambda text: None)
        assert loaded is not None, "the driver has loaded it before"
        learner = loaded[0].state["learner"]
        for learned in (learner["hyperparameters"], learner):  # the rate in use, beside its setting
            learned.update({n: value for n, value in self._changed.items() if n in learned})
        return loaded[0]


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Load the weights of a checkpoint. Raises RuntimeError if they are not those of the model, in
    names, shapes or dtypes: torch itself would convert another dtype and not say so."""
    for name, own in model.state_dict().items():
        found = tensors.get(name, own)
        if found.dtype != own.dtype:
            raise RuntimeError(f"{name!r} is {found.dtype}, but must be {own.dtype}")
    model.load_state_dict(tensors)


def model_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the model's state_dict from a checkpoint's tensors."""
    return {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}

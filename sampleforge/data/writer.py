"""The writing of datasets in Minari's HDF5 format, in segments that are closed one after another.

    DIR/data/metadata.json        Minari's metadata
    DIR/data/main_data.hdf5       one link per episode, into the segments
    DIR/data/part-000000.hdf5     closed segments
    DIR/data/.part-000001.hdf5.tmp    the segment that is being closed

The open segment is in memory. To close it, it is written under a temporary name, and so is a copy
of the index with its episodes; both are synced and renamed, and new metadata follow. So the
dataset can be opened at any time, also after the process was killed, and holds the episodes of all
closed segments. Arrays are stored as they are: no JPEG, for which Minari's default would take
images.

HDF5 itself writes no file: what it cannot write it can neither drop nor close, so that on a full
disk every later call fails, also those that free its objects, until one crashes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from sampleforge.config import ConfigError, typed
from sampleforge.data import minari_format as fields
from sampleforge.data.assembler import RecordedEpisode
from sampleforge.data.dataset import open_dataset
from sampleforge.data.episode_files import Hdf5Files
from sampleforge.env.adapter import ActionAdapter, offset
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.ops.distributions import ActionDistribution
from sampleforge.runtime.files import fsync, write_atomically
from sampleforge.runtime.folder_lock import lock_when_free
from sampleforge.spec import ACTION, ACTION_MASK, OBSERVATION, EnvSpec, leaves

Compression = Literal["none", "lzf", "gzip"]
CHUNK_BYTES = 1 << 19
"""Uncompressed size of the blocks that compressed arrays are stored in."""
LOCKS = "the dataset"
"""What the message about a folder that another one writes into calls the folder."""
_PART = re.compile(r"part-(\d{6,})\.hdf5")
_WRITTEN = ("reward", "terminated", "truncated")
NONE_DROPPED = fields.Dropped()
_NAMES = {"reward": "rewards", "terminated": "terminations", "truncated": "truncations"}


def _h5py() -> Any:
    """Return the module, which only the writing of datasets needs here."""
    import h5py

    return h5py


class Hdf5Group:
    """A new group ``name`` of the open file ``file`` (`h5py.File`), which is written through h5py's
    low-level interface: an episode has about ten small arrays, and short episodes come by the
    thousand. h5py's own `create_dataset` takes 70 us of a core for each, this takes 20."""

    def __init__(self, file: Any, name: str) -> None:
        self._h5 = _h5py()
        self._group = self._h5.h5g.create(file.id, name.encode())

    def set_attribute(self, name: str, value: npt.NDArray[Any]) -> None:
        """Set an attribute to a number or an array of numbers."""
        h5s, kind = self._h5.h5s, _type(value.dtype.str)
        space = h5s.create_simple(value.shape) if value.shape else h5s.create(h5s.SCALAR)
        self._h5.h5a.create(self._group, name.encode(), kind, space).write(value)

    def write(self, path: str, array: npt.NDArray[Any]) -> None:
        """Write an array as a dataset of its shape; groups of ``path`` are made as needed."""
        h5 = self._h5
        array = np.ascontiguousarray(array)
        dataset = h5.h5d.create(
            self._group,
            path.encode(),
            _type(array.dtype.str),
            h5.h5s.create_simple(array.shape),
            lcpl=_with_parents(),
        )
        dataset.write(h5.h5s.ALL, h5.h5s.ALL, array)


@lru_cache(maxsize=64)
def _type(dtype: str) -> Any:
    """Return HDF5's type for a numpy dtype, as h5py's high-level interface chooses it."""
    h5py = _h5py()
    return h5py.h5t.py_create(np.dtype(dtype), logical=True)


@lru_cache(maxsize=1)
def _with_parents() -> Any:
    """Return the properties of a link that has the groups above it made."""
    h5py = _h5py()
    properties = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    properties.set_create_intermediate_group(True)
    return properties


@dataclass(frozen=True)
class DatasetFormat:
    """What a dataset is written as. ``algorithm``: the name of the algorithm that plays;
    ``squashed``: whether its Box actions are tanh-squashed, which the parameters of their
    distribution do not tell; ``several_policies``: the policy of each step is written;
    ``segment_bytes``: the size at which a segment is closed; ``dropped``: what earlier recordings
    into the same dataset have dropped."""

    spec: EnvSpec
    algorithm: str = ""
    squashed: bool = False
    several_policies: bool = False
    segment_bytes: int = 128 << 20
    compression: Compression = "none"
    dropped: fields.Dropped = NONE_DROPPED


def check_folder(folder: Path, spec: EnvSpec, squashed: bool | None = None) -> None:
    """Raise ConfigError unless a dataset of ``spec`` can be written into ``folder``, which may hold
    one already: the new episodes follow its own. ``squashed``: whether its Box actions will be
    tanh-squashed (None: not known yet)."""
    fields.minari(f"writing the dataset {folder}")
    for name in (*spec.observations, *spec.actions):
        if "/" in name:
            raise ConfigError(
                f"{spec.env_id} has a leaf {name!r} in its spaces, but the datasets' HDF5 format "
                "uses / as its separator; rename it in the environment"
            )
    data = folder / "data"
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file; give the folder of a dataset, or a new one")
    if not (data / fields.METADATA_FILE).exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty and holds no dataset (data/{fields.METADATA_FILE}); give "
                "another folder"
            )
        return
    if os.access(folder, os.W_OK):  # else its writer says why it cannot write
        os.close(lock_when_free(folder, LOCKS))
    dataset = open_dataset(folder)
    found = dataset.recorded
    if found is None:
        raise ConfigError(
            f"{folder} holds a dataset that SampleForge has not recorded; give another folder"
        )
    try:
        for part in _parts(data):
            fields.own_file(data, part)
        episodes, _ = _totals(data)
        with Hdf5Files(data) as files:
            if episodes:
                files.episode(episodes - 1)  # its file may be gone: a new one would get its name
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        raise ConfigError(f"{folder} cannot be recorded into: {error}; give another folder") from (
            error
        )
    before, now = spec_to_plain(found), spec_to_plain(spec)
    if other := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        raise ConfigError(
            f"{folder} holds a dataset of {found.env_id} with other spaces or settings than "
            f"{spec.env_id} has here ({', '.join(other)}); give another folder"
        )
    has_boxes = any(leaf.kind == "box" for leaf in spec.actions.values())
    if has_boxes and squashed is not None and dataset.squashed != squashed:
        words = "what it does not say"
        if dataset.squashed is not None:
            words = typed("model.squash_actions", dataset.squashed)
        raise ConfigError(
            f"{folder} holds a dataset that was recorded with {words}, and the policy here has "
            f"{typed('model.squash_actions', squashed)}: a dataset has one kind of Box actions; "
            "give another folder"
        )


def stored_dropped(folder: Path) -> fields.Dropped:
    """Return what was dropped of the recordings that the dataset in ``folder`` has, if there is one
    (`check_folder` comes first)."""
    data = folder / "data"
    if not (data / fields.METADATA_FILE).exists():
        return fields.Dropped()
    return fields.Dropped.of(fields.read_metadata(str(folder), data))


def _parts(data: Path) -> list[str]:
    """Return the names of the closed segments, in their order."""
    return sorted(each.name for each in data.iterdir() if _PART.fullmatch(each.name))


def _totals(data: Path) -> tuple[int, int]:
    """Return the numbers of episodes and env steps in the files, of which the metadata may not
    count the last ones yet. Raises ValueError, KeyError, TypeError, OSError or RuntimeError for
    files that are not as they must be."""
    path, episodes, steps = data / fields.METADATA_FILE, 0, 0
    if path.exists():
        metadata = json.loads(path.read_text(encoding="utf-8"))
        episodes, steps = int(metadata["total_episodes"]), int(metadata["total_steps"])
    with Hdf5Files(data) as files:
        for number in range(episodes, len(files)):
            steps += int(files.episode(number).attrs["total_steps"])
        return len(files), steps


class DatasetWriter:
    """Writes episodes into ``folder``, behind those of earlier writers. `check_folder` comes first.

    No other writer can open the folder until `release`, or the end of this process. ``steps``,
    ``episodes`` and ``nbytes`` count what this writer has written into closed segments;
    ``size``: bytes of the whole dataset without the open segment; ``age``: seconds since the first
    episode of the open segment. ``dropped``: what this recording has dropped so far, and
    ``goes_on``: whether more is to come; set them.
    """

    def __init__(self, folder: Path, form: DatasetFormat) -> None:
        assert form.spec.spaces is not None
        self._data = folder / "data"
        self._form = form
        self._spec = spec = form.spec
        declared = form.spec.spaces
        self._observation_space = frame_space(spec, declared.observation)
        self._action_space = declared.action
        self._to_env = ActionAdapter(declared.action, spec.actions)
        self._paths = fields.hdf5_paths(declared.observation, OBSERVATION, "observations")
        self._action_paths = fields.hdf5_paths(declared.action, ACTION, "actions")
        self._spaces = dict(leaves(declared.observation, OBSERVATION))
        self._boxes = [name for name, leaf in spec.actions.items() if leaf.kind == "box"]
        self._file: Any = None
        self._in_segment: list[tuple[str, int]] = []
        self._segment_nbytes = 0
        self._began = 0.0
        self.steps = self.episodes = self.nbytes = 0
        self.dropped = fields.Dropped()
        self.goes_on = False
        self._told: tuple[fields.Dropped, bool] | None = (self.dropped, self.goes_on)
        """What the metadata say of both; None if they lack a segment."""
        self._data.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = lock_when_free(folder, LOCKS)
        try:
            self._open()
        except BaseException:
            self.release()
            raise
        self.size = sum(each.stat().st_size for each in self._data.iterdir())

    @property
    def age(self) -> float:
        return monotonic() - self._began if self._in_segment else 0.0

    @property
    def in_segment(self) -> int:
        """Number of episodes in the open segment, and of parts of such."""
        return len(self._in_segment)

    def add(self, episode: RecordedEpisode) -> None:
        """Write an episode into the open segment, and close the segment if it has its size. Raises
        OSError."""
        if self._file is None:
            self._open_segment()
        number = self._total_episodes + len(self._in_segment)
        name = f"episode_{number}"
        try:
            self._write(name, number, episode)
        except _H5_ERRORS as error:
            raise OSError(f"HDF5: {error}") from error
        self._in_segment.append((name, len(episode)))
        self._segment_nbytes += episode.nbytes
        if self._segment_nbytes >= self._form.segment_bytes:
            self.close_segment()

    def close_segment(self) -> None:
        """Close the open segment, if there is one: its episodes belong to the dataset from then on.
        Raises OSError; if only the metadata could not be written, they belong to it all the same,
        and the next call writes the metadata."""
        if self._file is None:
            if (self.dropped, self.goes_on) != self._told:
                self._write_metadata()
            return
        file, self._file = self._file, None
        _write_out(file, self._temporary)
        part = self._data / f"part-{self._next_part:06d}.hdf5"
        size = self._temporary.stat().st_size
        # Before the segment has its name: on a full disk the dataset gets both, or neither.
        index = self._index_with(part, [name for name, _ in self._in_segment])
        _sync_and_rename(self._temporary, part)
        self._next_part += 1
        _sync_and_rename(index, self._data / fields.MAIN_FILE)
        steps = sum(each for _, each in self._in_segment)
        self._total_episodes += len(self._in_segment)
        self._total_steps += steps
        self.episodes += len(self._in_segment)
        self.steps += steps
        self.nbytes += size
        self.size += size
        self._in_segment.clear()
        self._told = None
        self._write_metadata()

    def release(self) -> None:
        """Let other writers open the folder. Nothing more can be written."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def abandon(self) -> None:
        """Drop the open segment, after an error, and what was being written."""
        with suppress(OSError, *_H5_ERRORS):
            if self._file is not None:
                self._file.close()
        self._file = None
        self._in_segment.clear()
        with suppress(OSError):
            self._remove_temporary()

    def _open(self) -> None:
        """Continue the dataset in the folder, or begin one. A segment that an earlier writer has
        closed and not linked is linked; one that it left open is removed."""
        self._remove_temporary()
        index = self._data / fields.MAIN_FILE
        if not index.exists():
            _write_out(_in_memory(index, "w"), index)
        parts = _parts(self._data)
        self._next_part = 0
        if parts:
            match = _PART.fullmatch(parts[-1])
            assert match is not None
            self._next_part = int(match[1]) + 1
            self._link_missing(self._data / parts[-1])
        self._total_episodes, self._total_steps = _totals(self._data)
        self._write_metadata()

    def _remove_temporary(self) -> None:
        """Remove the files that were not complete when an error or a kill came."""
        for left in self._data.glob(".*.tmp"):
            left.unlink()

    def _link_missing(self, part: Path) -> None:
        h5py = _h5py()
        with (
            h5py.File(self._data / fields.MAIN_FILE, "r") as index,
            h5py.File(part, "r") as segment,
        ):
            missing = [name for name in segment if index.get(name, getlink=True) is None]
        if missing:
            copy = self._index_with(part, missing)
            _sync_and_rename(copy, self._data / fields.MAIN_FILE)

    @property
    def _temporary(self) -> Path:
        return self._data / f".part-{self._next_part:06d}.hdf5.tmp"

    def _open_segment(self) -> None:
        self._file = _in_memory(self._temporary, "w")
        self._segment_nbytes, self._began = 0, monotonic()

    def _index_with(self, part: Path, names: list[str]) -> Path:
        """Write a copy of the index with links to episodes of a segment, under a temporary name,
        which is returned. HDF5 would lock the index itself against those who read it, and wait for
        none of them."""
        h5py = _h5py()
        copy = self._data / f".{fields.MAIN_FILE}.tmp"
        shutil.copyfile(self._data / fields.MAIN_FILE, copy)
        file = _in_memory(copy, "r+")
        for name in names:
            file[name] = h5py.ExternalLink(part.name, f"/{name}")
        _write_out(file, copy)
        return copy

    def _write_metadata(self) -> None:
        from minari import __version__ as minari_version
        from minari.serialization import serialize_space

        size = sum(each.stat().st_size for each in self._data.iterdir()) / 1e6
        metadata = {
            "total_episodes": self._total_episodes,
            "total_steps": self._total_steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": serialize_space(self._observation_space),
            "action_space": serialize_space(self._action_space),
            "dataset_id": dataset_id(self._data.parent),
            "dataset_size": round(size, 1),
            "minari_version": minari_version,
            "algorithm_name": self._form.algorithm,
            fields.SQUASHED_KEY: self._form.squashed,
            fields.SPEC_KEY: spec_to_plain(self._spec),
            fields.DROPPED_KEY: self._form.dropped.plus(self.dropped)._asdict(),
            fields.RECORDING_KEY: self.goes_on,
        }
        path = self._data / fields.METADATA_FILE
        write_atomically(path, json.dumps(metadata).encode())
        self._told = (self.dropped, self.goes_on)

    def _write(self, name: str, number: int, episode: RecordedEpisode) -> None:
        """Write an episode into a group of the segment, called ``name``."""
        attributes = {
            "id": np.int64(number),
            "total_steps": np.int64(len(episode)),
            "begins": np.bool_(episode.begins),
            "shortened": np.bool_(episode.shortened),
            "stream": np.array(episode.env_row, np.int64),
            "number": np.int64(episode.number),
        }
        if episode.span is not None:
            attributes["span"] = np.array(episode.span, np.int64)
        compressed = {}
        group = Hdf5Group(self._file, name)
        for each, value in attributes.items():
            group.set_attribute(each, np.asarray(value))
        for path, array in self._arrays(episode).items():
            if self._form.compression != "none" and array.nbytes >= CHUNK_BYTES:
                compressed[path] = array
            else:
                group.write(path, array)
        for path, array in compressed.items():
            steps = max(1, min(len(array), CHUNK_BYTES // (array.nbytes // len(array))))
            self._file[name].create_dataset(
                path,
                data=array,
                compression=self._form.compression,
                chunks=(steps, *array.shape[1:]),
            )

    def _arrays(self, episode: RecordedEpisode) -> dict[str, Any]:
        """Return the arrays of an episode by their paths in its group."""
        steps = episode.steps
        arrays = {_NAMES[name]: steps[name] for name in _WRITTEN}
        infos: dict[str, Any] = {fields.VERSION: steps["version"]}
        for name, column in episode.observations.items():
            if name not in self._spaces:
                infos[fields.MASK] = column
                continue
            arrays[self._paths[name]] = self._observation(name, column)
        slots = {name: steps[f"action/{name}"] for name in self._spec.actions}
        for name, column in self._to_env(slots).items():
            arrays[self._action_paths[name]] = column
        for name in self._boxes:
            infos[f"{fields.POLICY_ACTION}/{name}"] = slots[name]
        if "parameters" in steps:
            infos[fields.PARAMETERS] = steps["parameters"]
            infos[fields.LOG_PROB] = self._log_prob(steps)
            infos[fields.INDEPENDENT] = steps["independent"]
        for name, frames in episode.frames_before.items():
            infos[f"{fields.FRAMES_BEFORE}/{name}"] = frames
        if self._form.several_policies:
            infos[fields.POLICY] = episode.policy
        return {**arrays, **{f"infos/{name}": column for name, column in infos.items()}}

    def _log_prob(self, steps: Mapping[str, Any]) -> Any:
        """Return the log-probabilities [T] of the actions. Without a column of their own they
        follow from the parameters; those of an epsilon-greedy policy are log-probabilities
        [T, A]."""
        if "log_prob" in steps:
            return steps["log_prob"]
        if not self._boxes:
            actions = steps[f"action/{ACTION}"]
            return np.take_along_axis(steps["parameters"], actions[:, None], 1)[:, 0]
        taken = {n: torch.from_numpy(steps[f"action/{n}"]) for n in self._spec.actions}
        parameters = torch.from_numpy(steps["parameters"])
        distribution = ActionDistribution(
            self._spec.actions, parameters, squash=self._form.squashed
        )
        return distribution.log_prob(taken).numpy()

    def _observation(self, name: str, column: Any) -> Any:
        """Return an observation leaf as its space has it: with its offset, and a mask as integers;
        float64 stays float32, as it was sampled."""
        space = self._spaces[name]
        start = offset(space)
        if start is not None:
            column = column + np.asarray(start, column.dtype)
        return column.astype(space.dtype) if name == ACTION_MASK else column


_FORMAT = {"libver": ("v110", "v110")}
"""Of HDF5: faster groups and links than those of its first version."""


_H5_ERRORS = (RuntimeError, ValueError)
"""What h5py raises for errors of HDF5, beside OSError."""


def _in_memory(path: Path, mode: Literal["w", "r+"]) -> Any:
    """Open a new HDF5 file ("w"), or the one at ``path`` ("r+"), in memory: what changes is not
    written to ``path``."""
    return _h5py().File(path, mode, driver="core", backing_store=False, **_FORMAT)


def _write_out(file: Any, path: Path) -> None:
    """Close an HDF5 file that is in memory, and write it to ``path``. Raises OSError."""
    try:
        with file:
            file.flush()
            image = file.id.get_file_image()
    except _H5_ERRORS as error:
        raise OSError(f"HDF5: {error}") from error
    try:
        path.write_bytes(image)
    except OSError as error:  # that of a write names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def frame_space(spec: EnvSpec, space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an observation space with the space of one frame in the place of each stack."""

    def change(name: str, leaf: gym.Space[Any]) -> gym.Space[Any]:
        if spec.observations[name].stack is None:
            return leaf
        assert isinstance(leaf, spaces.Box)
        return spaces.Box(leaf.low[-1], leaf.high[-1], leaf.shape[1:], leaf.dtype.type)

    return fields.map_leaves(space, OBSERVATION, change)


def dataset_id(folder: Path) -> str:
    """Return Minari's id of the dataset in ``folder``: its name, with a version if it has none."""
    name = re.sub(r"[^-\w]", "-", folder.name, flags=re.ASCII) or "dataset"
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _sync_and_rename(temporary: Path, path: Path) -> None:
    """Give a complete file its name, so that this survives a power cut."""
    fsync(temporary)
    os.replace(temporary, path)
    fsync(path.parent)

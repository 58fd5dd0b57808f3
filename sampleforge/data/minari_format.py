"""The folder of a dataset in Minari's format: the names that it uses, what SampleForge adds,
and which of its files are read, since it may come from anywhere.


A dataset is a folder ``data`` with ``metadata.json`` and, for HDF5, ``main_data.hdf5``, in which
``episode_<i>`` holds one episode; see the documentation of Minari. SampleForge writes, beside what
Minari requires:

* ``sampleforge`` in metadata.json: the environment's spec as JSON (`sampleforge.env.spec_json`);
* ``dropped`` in metadata.json: what was sampled and is not in the dataset, see `Dropped`;
* ``squashed_actions`` in metadata.json: whether its Box actions are tanh-squashed;
* ``recording`` in metadata.json: whether a recording goes on, or was broken off;
* stacks of frames as single frames, so that ``observation_space`` has the space of one frame;
* in ``infos``: the arrays that `INFOS` names;
* as attributes of an episode: those that `ATTRIBUTES` names.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces

from sampleforge.config import ConfigError
from sampleforge.env.spec_json import MAX_ELEMENTS
from sampleforge.spec import leaf_name

METADATA_FILE = "metadata.json"
MAIN_FILE = "main_data.hdf5"
SPEC_KEY = "sampleforge"
SQUASHED_KEY = "squashed_actions"
DROPPED_KEY = "dropped"
RECORDING_KEY = "recording"

LOG_PROB = "log_prob"
VERSION = "policy_version"
PARAMETERS = "action_parameters"
INDEPENDENT = "independent"
POLICY_ACTION = "policy_action"
POLICY = "policy"
MASK = "action_mask"
FRAMES_BEFORE = "frames_before"
INFOS = {
    LOG_PROB: "float32 [T]: log-probability of the action when it was drawn",
    VERSION: "int64 [T]: version of the policy that acted",
    PARAMETERS: "float32 [T, P]: parameters of the distribution that the action was drawn from, "
    "in the order of `sampleforge.ops.distributions`",
    INDEPENDENT: "bool [T]: whether the action was drawn from that distribution, independently of "
    "the steps before: not with correlated noise, nor with an epsilon of 0",
    POLICY_ACTION: "leaf -> [T, ...]: Box actions in the policy's units, before they are clipped",
    POLICY: "int64 [T]: index of the policy that acted, if there are several",
    MASK: "bool [T+1, n]: action mask that the environment gave in its info",
    FRAMES_BEFORE: "leaf -> [k-1, ...]: frames before the first one, if a stack of k frames begins "
    "within an episode",
}
"""The arrays in ``infos`` of an episode of T steps."""
ATTRIBUTES = {
    "begins": "whether the first observation is that of a reset",
    "shortened": "whether decorrelation gave the episode a shorter limit than the environment has",
    "stream": "int64 [4]: actor, split, seat and row that sampled it",
    "number": "count of the episodes of that stream, the same for all parts of one episode",
    "span": "int64 [2]: env steps of the whole run when the rollouts began in which the episode "
    "began, and in which its last step (of this part) was taken; only of a recorded training",
}
"""The attributes of an episode beside those of Minari. An episode may have several parts, which
follow each other; the last step of a part that does not end the episode is neither terminated nor
truncated."""


class Dropped(NamedTuple):
    """What was sampled and is not in a dataset. Because the recorder could not keep up:
    ``episodes``, left out as a whole, which was decided before they began; ``steps``, env steps
    that are missing; ``cut_episodes``, recorded up to a step, which is where the recorder stood
    still. Because it was killed or could not write, ``breaks`` times: ``lost_episodes``, those of
    its open segment and those that were going on (of a run that was killed they are not known)."""

    episodes: int = 0
    steps: int = 0
    cut_episodes: int = 0
    lost_episodes: int = 0
    breaks: int = 0

    def plus(self, other: Dropped) -> Dropped:
        return Dropped(*(a + b for a, b in zip(self, other, strict=True)))

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Dropped:
        """Return what the metadata of a dataset name; zeros where they name nothing. A recording
        that has not ended counts as broken off. Raises ConfigError for a value that is no count."""
        given = metadata.get(DROPPED_KEY, {})
        if not isinstance(given, dict) or not all(map(_is_count, given.values())):
            raise ConfigError(f"{METADATA_FILE}: {DROPPED_KEY} is {given!r:.80}, not counts")
        counted = cls(*(given.get(name, 0) for name in cls._fields))
        return counted.plus(cls(breaks=int(metadata.get(RECORDING_KEY) is True)))

    def __str__(self) -> str:
        parts = []
        if self.episodes or self.steps or self.cut_episodes:
            cut = f", and the ends of {self.cut_episodes:,} episodes" if self.cut_episodes else ""
            parts.append(
                f"{self.episodes:,} whole episodes{cut}, in total {self.steps:,} env steps: the "
                "recorder could not keep up"
            )
        if self.breaks:
            known = f" ({self.lost_episodes:,} of them are known)" if self.lost_episodes else ""
            times = "once" if self.breaks == 1 else f"{self.breaks:,} times"
            parts.append(
                f"the episodes that were going on or not stored yet{known} when the recording was "
                f"broken off, {times}"
            )
        return "; and ".join(parts)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def minari(what: str) -> Any:
    """Return the module minari. Raises ConfigError, with the command that installs it, if a package
    is missing. ``what`` needs it."""
    try:
        importlib.import_module("h5py")
        return importlib.import_module("minari")
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the package {error.name}, which is not installed: "
            'pip install "sampleforge[offline]"'
        ) from None


def map_leaves(
    space: gym.Space[Any], name: str, change: Callable[[str, gym.Space[Any]], gym.Space[Any]]
) -> gym.Space[Any]:
    """Return ``space`` with ``change(dotted name, leaf)`` in the place of each leaf; a plain space
    is one leaf called ``name``."""

    def walk(each: gym.Space[Any], path: tuple[Any, ...]) -> gym.Space[Any]:
        if isinstance(each, spaces.Dict):
            return spaces.Dict([(k, walk(s, (*path, k))) for k, s in each.spaces.items()])
        if isinstance(each, spaces.Tuple):
            return spaces.Tuple([walk(s, (*path, i)) for i, s in enumerate(each.spaces)])
        return change(leaf_name(path, name), each)

    return walk(space, ())


def hdf5_paths(space: gym.Space[Any], name: str, root: str) -> dict[str, str]:
    """Return the path of each leaf below an episode's group, by the leaf's dotted name; a plain
    space is the dataset ``root`` itself."""
    paths: dict[str, str] = {}

    def walk(each: gym.Space[Any], path: str, keys: tuple[Any, ...]) -> None:
        if isinstance(each, spaces.Dict):
            for key, child in each.spaces.items():
                walk(child, f"{path}/{key}", (*keys, key))
        elif isinstance(each, spaces.Tuple):
            for i, child in enumerate(each.spaces):
                walk(child, f"{path}/_index_{i}", (*keys, i))
        else:
            paths[leaf_name(keys, name)] = path

    walk(space, root, ())
    return paths


MOST_METADATA = 1 << 28
"""Largest size of a file of metadata, in bytes."""
_FORMATS = ("hdf5", "arrow", "parquet")
SPACES = ("observation_space", "action_space")
"""The names of the spaces in the metadata."""
_COUNTS = ("total_episodes", "total_steps")


def own_file(folder: Path, name: str) -> Path:
    """Return the path of the file ``name`` in ``folder``. Raises ValueError unless it is a regular
    file there: not for a path, nor for a link that leads out of the folder."""
    path = folder / name
    if Path(name).name != name or path.resolve().parent != folder.resolve():
        raise ValueError(
            f"{name} leads out of the dataset's folder, and no file from elsewhere is read; put "
            "the file itself into the folder"
        )
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{name} is no regular file")
    return path


def read_metadata(source: str, data: Path) -> dict[str, Any]:
    """Return the metadata of the dataset in the folder ``data``, with counts and spaces of the
    right types. ``source``: its name in messages. Raises ConfigError if they are not."""
    name = METADATA_FILE
    try:
        path = own_file(data, name)
        if path.stat().st_size > MOST_METADATA:
            raise ValueError(f"it has more than {MOST_METADATA:,} bytes")
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: {name} cannot be read: {error}") from error
    if not isinstance(metadata, dict):
        raise ConfigError(f"{source}: {name} is no JSON object")
    for field in SPACES:
        if not isinstance(metadata.get(field), str):
            raise ConfigError(
                f"{source}: its metadata has no {field}, and SampleForge makes no environment that "
                "a dataset names; write the dataset again with its spaces (Minari 0.5 does)"
            )
    for field in _COUNTS:
        value = metadata.get(field)
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise ConfigError(f"{source}: {field} is {value!r:.80}, not a number from 0 on")
    if metadata.get("data_format") not in _FORMATS:
        raise ConfigError(
            f"{source}: data_format is {metadata.get('data_format')!r:.80}, but must be one of "
            f"{', '.join(_FORMATS)}"
        )
    return metadata


def read_space(source: str, name: str, text: str) -> gym.Space[Any]:
    """Return a space of the metadata. Raises ConfigError if it is none, or a huge one."""
    from minari.serialization import deserialize_space

    try:
        _check_sizes(json.loads(text))
        space: gym.Space[Any] = deserialize_space(text)
    except Exception as error:  # whatever a wrong value makes of Minari and gymnasium
        raise ConfigError(
            f"{source}: {name} is no space that Minari knows: {type(error).__name__}: {error}"
        ) from error
    return space


def _check_sizes(plain: Any) -> None:
    """Raise ValueError for a shape of too many elements: gymnasium makes arrays of it."""
    if isinstance(plain, dict):
        for name in ("shape", "n"):
            given = plain.get(name)
            if isinstance(given, list) and math.prod(given) > MAX_ELEMENTS:
                raise ValueError(f"{name} is {given}, but at most {MAX_ELEMENTS:,} elements fit")
        plain = list(plain.values())
    for child in plain:
        if isinstance(child, dict | list):
            _check_sizes(child)

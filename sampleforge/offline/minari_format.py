"""What a dataset of SampleForge adds to Minari's format, and the names that it uses.

A dataset is a folder ``data`` with ``metadata.json`` and, for HDF5, ``main_data.hdf5``, in which
``episode_<i>`` holds one episode; see the documentation of Minari. SampleForge writes, beside what
Minari requires:

* ``sampleforge`` in metadata.json: the environment's spec as JSON (`sampleforge.env.spec_json`);
* stacks of frames as single frames, so that ``observation_space`` has the space of one frame;
* in ``infos``: the arrays that `INFOS` names;
* as attributes of an episode: those that `ATTRIBUTES` names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from sampleforge.config import ConfigError

METADATA_FILE = "metadata.json"
MAIN_FILE = "main_data.hdf5"
SPEC_KEY = "sampleforge"

LOG_PROB = "log_prob"
VERSION = "policy_version"
PARAMETERS = "action_parameters"
POLICY_ACTION = "policy_action"
POLICY = "policy"
MASK = "action_mask"
FRAMES_BEFORE = "frames_before"
INFOS = {
    LOG_PROB: "float32 [T]: log-probability of the action when it was drawn",
    VERSION: "int64 [T]: version of the policy that acted",
    PARAMETERS: "float32 [T, P]: parameters of the distribution that the action was drawn from, "
    "in the order of `sampleforge.ops.distributions`",
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
}
"""The attributes of an episode beside those of Minari. An episode may have several parts, which
follow each other; the last step of a part that does not end the episode is neither terminated nor
truncated."""


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

    def walk(each: gym.Space[Any], path: str) -> gym.Space[Any]:
        if isinstance(each, spaces.Dict):
            return spaces.Dict([(k, walk(s, _join(path, k))) for k, s in each.spaces.items()])
        if isinstance(each, spaces.Tuple):
            return spaces.Tuple([walk(s, _join(path, i)) for i, s in enumerate(each.spaces)])
        return change(path or name, each)

    return walk(space, "")


def hdf5_paths(space: gym.Space[Any], name: str, root: str) -> dict[str, str]:
    """Return the path of each leaf below an episode's group, by the leaf's dotted name; a plain
    space is the dataset ``root`` itself."""
    paths: dict[str, str] = {}

    def walk(each: gym.Space[Any], path: str, dotted: str) -> None:
        if isinstance(each, spaces.Dict):
            for key, child in each.spaces.items():
                walk(child, f"{path}/{key}", _join(dotted, key))
        elif isinstance(each, spaces.Tuple):
            for i, child in enumerate(each.spaces):
                walk(child, f"{path}/_index_{i}", _join(dotted, i))
        else:
            paths[dotted or name] = path

    walk(space, root, "")
    return paths


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)

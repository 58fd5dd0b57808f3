"""The folder of a dataset, which may come from anywhere: which files are read, and their metadata.

FOLDER/data/metadata.json    see `sampleforge.data.minari_format`
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import gymnasium as gym

from sampleforge.config import ConfigError
from sampleforge.data import minari_format as fields
from sampleforge.env.spec_json import MAX_ELEMENTS

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
    name = fields.METADATA_FILE
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

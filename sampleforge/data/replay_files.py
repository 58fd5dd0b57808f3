"""Replays on disk: one .npy file per array and shard, no pickle, each with its checksum."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 8 << 20
"""Bytes that are copied at a time."""
_SYNC = 256 << 20
"""Bytes after which they are put on the disk: one sync of everything at the end would look as if
the process hung."""


@dataclass(frozen=True)
class SavedFile:
    """``sha256`` and ``size`` (bytes) are of the whole file."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class SavedShard:
    """``arrays`` by name; ``plain``: JSON's plain values."""

    arrays: dict[str, SavedFile]
    plain: dict[str, Any]


@dataclass(frozen=True)
class SavedReplay:
    """A whole replay, as it was after ``env_steps``, whose files were found to be what was written.
    ``geometry``: see `sampleforge.data.replay_archive.geometry`."""

    folder: Path
    env_steps: int
    geometry: dict[str, Any]
    shards: tuple[SavedShard, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(found.size for shard in self.shards for found in shard.arrays.values())

    @property
    def items(self) -> int:
        """Transitions, or sequences."""
        return sum(int(shard.plain["stored"]) for shard in self.shards)


@dataclass(frozen=True)
class ReplayFolder:
    """Where replays of a run are saved, and the one to go on with: ``saved``, or ``missing`` says
    why there is none."""

    path: Path
    saved: SavedReplay | None = None
    missing: str = ""


def slot_parts(column: Array, slots: npt.NDArray[np.int64]) -> Iterable[Array]:
    """Copies of ``column[slots]``, piece by piece."""
    each = max(1, CHUNK // max(1, column[:1].nbytes))
    return (column[slots[i : i + each]] for i in range(0, len(slots), each))


def write_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    parts: Iterable[Array],
    tick: Callable[[], None],
) -> SavedFile:
    """Write an array of ``shape`` that consists of ``parts``, one after the other, and put it on
    the disk. ``tick`` is called after each part. Raises OSError, and whatever ``tick`` raises."""
    digest, size, unsynced = hashlib.sha256(), 0, 0
    with path.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        for data in chain([_header(shape, dtype)], map(_bytes_of, parts)):
            file.write(data)
            digest.update(data)
            size, unsynced = size + len(data), unsynced + len(data)
            if unsynced >= _SYNC:
                file.flush()
                os.fdatasync(file.fileno())
                unsynced = 0
            tick()
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(path.name, digest.hexdigest(), size)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> memoryview:
    """The beginning of an .npy file."""
    text = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(text, described)
    return text.getbuffer()


def _bytes_of(part: Array) -> memoryview:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data

"""Saving a replay while actors write into it, and restoring it.

The driver sends a request; each shard writes its own files. It saves its STORED slots: only the
shard could evict them, and it does nothing else meanwhile. The slots that actors write to are not
saved, nor those that wait for the shard. So no worker has to stop, and the saved slots cannot
change: actors continue until they have no more free slots, the learner until it has learned from
the samples in flight.

After a restore, generations are above all those that were saved, so that no (item, generation) of
the previous run is valid.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sampleforge.replay.shard import ReplayShard
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.shared.arrays import SharedArrays, SharedViews
from sampleforge.shared.wakeup import Wakeup

Array = npt.NDArray[Any]

CHUNK = 8 << 20
"""Bytes that are copied at a time."""
_SYNC = 256 << 20
"""Bytes after which a file is synced to the disk: a single sync at the end would take so long that
the process would seem to hang."""


@dataclass(frozen=True)
class SavedFile:
    """A file of a saved replay; ``sha256`` and ``size`` (bytes) are of the whole file."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class SavedShard:
    """The saved files of a shard: ``arrays`` by name; ``plain``: values for JSON."""

    arrays: dict[str, SavedFile]
    plain: dict[str, Any]


@dataclass(frozen=True)
class SavedReplay:
    """A saved replay, as it was after ``env_steps``, whose files have been verified. ``geometry``:
    see `sampleforge.replay.snapshot.geometry`."""

    folder: Path
    env_steps: int
    geometry: dict[str, Any]
    shards: tuple[SavedShard, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for shard in self.shards for file in shard.arrays.values())

    @property
    def items(self) -> int:
        """Number of transitions, or of sequences."""
        return sum(int(shard.plain["stored"]) for shard in self.shards)

    @property
    def learning(self) -> bool:
        """Whether learning had begun before the first shard was saved."""
        return all(shard.plain["learning"] for shard in self.shards)


@dataclass(frozen=True)
class ReplayFolder:
    """The folder of a run's saved replays, and the replay to resume from: ``saved``, or the reason
    in ``missing`` why there is none."""

    path: Path
    saved: SavedReplay | None = None
    missing: str = ""


def slot_parts(column: Array, slots: npt.NDArray[np.int64]) -> Iterable[Array]:
    """Yield copies of ``column[slots]``, of about `CHUNK` bytes each."""
    each = max(1, CHUNK // max(1, column[:1].nbytes))
    return (column[slots[i : i + each]] for i in range(0, len(slots), each))


def write_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    parts: Iterable[Array],
    tick: Callable[[], None],
) -> SavedFile:
    """Write an .npy file with an array of ``shape`` that consists of ``parts``, in order, and sync
    it to the disk. ``tick`` is called after each part. Raises OSError, and what ``tick`` raises."""
    digest, size, unsynced = hashlib.sha256(), 0, 0
    with path.open("xb") as file:
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
    """Return the header of an .npy file."""
    text = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(text, described)
    return text.getbuffer()


def _bytes_of(part: Array) -> memoryview:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data


_ERROR_BYTES = 1000


class Cancelled(Exception):
    """The driver has cancelled the request to save the replay."""


def geometry(
    slots: TrajectorySlots, capacities: tuple[int, ...], alpha: float, rewards: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a saved replay and the replay that restores it must have in common, as values for
    JSON. ``capacities``: number of slots of each shard; ``rewards``: settings of the rewards that
    stored windows are sums of. Windows of sequences are made when they are read."""
    shape = slots.shape
    return {
        **({} if shape.sequences else rewards),
        "rollout": shape.rollout,
        "rows": shape.rows,
        "slots_per_shard": list(capacities),
        "prioritised": alpha > 0,
        "compressed": shape.frame_buffers is not None,
        "columns": {n: [*map(str, c.shape[1:]), str(c.dtype)] for n, c in columns(slots).items()},
    }


def columns(slots: TrajectorySlots) -> dict[str, Array]:
    """Return all columns of the slots except raw frames that are compressed, [slots, ...] each."""
    compressed = slots.shape.frame_buffers is not None
    raw = {f"obs/{name}" for name in slots.stacks if compressed}
    of_slots = {name: slots.arrays[name] for name in slots.columns() if name not in raw}
    return {name: column for name, column in of_slots.items() if column.nbytes}


def saved_bytes(slots: TrajectorySlots, stored: int, prioritised: bool, rings: int) -> int:
    """Return the bytes of a saved replay with ``stored`` slots; ``rings``: bytes of compressed
    frames."""
    each = sum(column[:1].nbytes for column in columns(slots).values())
    return stored * (each + 8 * prioritised * slots.shape.items) + rings


class ReplayArchive(SharedViews):
    """The channel between the driver, which requests that the replay is saved, and the shards,
    which save it.

    ``asked``, ``answered`` and ``cancelled`` are numbers of requests; each has one writer.
    """

    def __init__(
        self,
        wakeups: list[Wakeup],
        slots: TrajectorySlots,
        geometry: dict[str, Any],
        where: ReplayFolder,
    ) -> None:
        shards = len(wakeups)
        self.geometry = geometry
        self.where = where
        self._slots = slots
        self._wakeups = wakeups
        self._arrays = SharedArrays(
            {
                "asked": ((1,), "int64"),
                "cancelled": ((1,), "int64"),
                "answered": ((shards,), "int64"),
                "error": ((shards, _ERROR_BYTES), "uint8"),
            }
        )
        self._attach()

    def _attach(self) -> None:
        self.asked = self._arrays["asked"]
        """[1]: number of the latest request. A shard reads it in every step."""

    # ---- driver ----

    def ask(self) -> Path:
        """Have every shard write its files into a new folder; return the folder. Called by the
        driver."""
        number = int(self.asked[0]) + 1
        folder = self._folder(number)
        folder.mkdir(parents=True)
        self._arrays["error"][...] = 0
        self.asked[0] = number
        for wakeup in self._wakeups:
            wakeup.set()
        return folder

    @property
    def answered(self) -> bool:
        """Whether every shard has saved or failed. Read by the driver."""
        return bool((self._arrays["answered"] == self.asked[0]).all())

    @property
    def error(self) -> str | None:
        """The error of the first shard that has failed, or None. Read by the driver."""
        for text in self._arrays["error"]:
            if text[0]:
                return bytes(text).rstrip(b"\0").decode(errors="replace")
        return None

    def cancel(self) -> None:
        """Cancel the latest request. Called by the driver."""
        self._arrays["cancelled"][0] = self.asked[0]

    def results(self, folder: Path) -> list[SavedShard]:
        """Return what all shards have written into ``folder``. Called by the driver."""
        shards = []
        for shard in range(len(self._wakeups)):
            path = folder / _about(shard)
            shards.append(shard_from_plain(json.loads(path.read_bytes())))
            path.unlink()
        return shards

    # ---- shard ----

    def last_answered(self, index: int) -> int:
        """Return the number of the latest request that this shard has answered."""
        return int(self._arrays["answered"][index])

    def save(self, index: int, shard: ReplayShard, beat: Callable[[], None]) -> None:
        """Write the shard's files and answer the request. Called by the shard. ``beat`` is called
        at short intervals, to show that the process is alive."""
        number = int(self.asked[0])

        def tick() -> None:
            beat()
            if self._arrays["cancelled"][0] >= number:
                raise Cancelled

        try:
            self._save(index, shard, self._folder(number), tick)
        except Cancelled:
            pass
        except OSError as error:
            text = f"{type(error).__name__}: {error}".encode()[:_ERROR_BYTES]
            self._arrays["error"][index, : len(text)] = np.frombuffer(text, np.uint8)
        self._arrays["answered"][index] = number

    def _save(self, index: int, shard: ReplayShard, folder: Path, tick: Callable[[], None]) -> None:
        for path in folder.glob(f"shard-{index}-*"):  # of a previous process, which was killed
            path.unlink()
        small, plain = shard.snapshot()
        slots = np.array(shard.stored_slots, np.int64)
        saved: dict[str, SavedFile] = {}

        def write(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Any) -> None:
            path = folder / f"shard-{index}-{len(saved)}.npy"
            saved[name] = write_array(path, shape, dtype, parts, tick)

        for name, column in columns(self._slots).items():
            shape = (len(slots), *column.shape[1:])
            write(f"slot/{name}", shape, column.dtype, slot_parts(column, slots))
        if shard.frames is not None:
            size = shard.frames.used
            write("frames", (size,), np.dtype(np.uint8), shard.frames.pieces())
        for name, array in small.items():
            write(name, array.shape, array.dtype, [array])
        about = dataclasses.asdict(SavedShard(saved, plain))
        (folder / _about(index)).write_text(json.dumps(about))

    def restore(self, index: int, shard: ReplayShard, beat: Callable[[], None]) -> None:
        """Restore the shard's part of the saved replay, if there is one. Called by the shard before
        it begins."""
        saved = self.where.saved
        if saved is None:
            return
        of_shard = saved.shards[index]
        arrays = {name: _open(saved, file) for name, file in of_shard.arrays.items()}
        where = shard.slots_for(arrays["slots"])
        for name, column in columns(self._slots).items():
            source = arrays[f"slot/{name}"]
            for i, slot in enumerate(where):
                column[slot] = source[i]
                beat()
        if shard.frames is not None:
            shard.frames.restore(where, arrays, beat)
        shard.restore(where, arrays, of_shard.plain)

    def _folder(self, number: int) -> Path:
        """Return the folder of request ``number`` while it is not complete."""
        return self.where.path / f".replay-{number}.unfinished"


def shard_from_plain(values: dict[str, Any]) -> SavedShard:
    """Return the shard whose `dataclasses.asdict` is ``values``. Raises TypeError or KeyError if
    the values have another form."""
    arrays = {name: SavedFile(**file) for name, file in values["arrays"].items()}
    return SavedShard(arrays, dict(values["plain"]))


def _about(shard: int) -> str:
    return f"shard-{shard}.json"


def _open(saved: SavedReplay, file: SavedFile) -> Array:
    """Return an array of a replay; a large one is memory-mapped. The file was verified before."""
    large = file.size > CHUNK  # an array without elements, which cannot be mapped, is not large
    path = saved.folder / file.file
    loaded: Array = np.load(path, mmap_mode="r" if large else None, allow_pickle=False)
    return loaded

"""The frames of a replay in compressed form, in rings of bytes in shared memory.

Ownership: while an actor has a slot, the slot's frames are raw, in a frame buffer that is lent to
the slot. When the slot becomes STORED, its shard compresses the frames into the shard's ring and
takes the frame buffer back. When the slot is evicted (oldest first), its bytes in the ring are
free. The generation of the slot has risen by then, so a reader that was copying the frames notices.

The unit is a block of up to 8 consecutive frames of one row, because LZ4 looks back 64 KiB and
finds most of a frame in the frame before: 55x on Breakout and 13x on Ms. Pac-Man, where single
frames give 18x and 4x (benchmarks/results/replay.md). The two stacks of a transition are in one or
two blocks.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.rollouts.stacks import Indices, StackColumn, stack_index
from sampleforge.shared.arrays import Layout, SharedArrays, SharedViews, layout_bytes
from sampleforge.spec import ArraySpec

_WINDOW = 1 << 16  # bytes that LZ4 looks back
_MOST_FRAMES = 8


def lz4_block() -> Any:
    """Return the module lz4.block. Raises ConfigError, with the command that installs it, if it is
    missing."""
    if importlib.util.find_spec("lz4") is None:
        raise ConfigError(
            "--replay-compression lz4 needs the package lz4, which is not installed: "
            'pip install "sampleforge[compress]"'
        )
    return importlib.import_module("lz4.block")


@dataclass(frozen=True)
class Blocks:
    """The division of one leaf's frames [frames, rows, ...] of a slot into blocks: ``depth``
    consecutive frames of a row make a block; the last one of a row may have fewer."""

    frames: int
    rows: int
    frame_bytes: int

    @classmethod
    def of(cls, shape: SlotShape, leaf: ArraySpec) -> Blocks:
        return cls(shape.rollout + leaf.shape[0], shape.rows, leaf.nbytes // leaf.shape[0])

    @property
    def depth(self) -> int:
        return max(1, min(_MOST_FRAMES, _WINDOW // self.frame_bytes))

    @property
    def per_row(self) -> int:
        return -(-self.frames // self.depth)

    def nbytes(self, block: int) -> int:
        """Return the raw bytes of block number ``block`` of a row."""
        return min(self.depth, self.frames - block * self.depth) * self.frame_bytes

    @property
    def most(self) -> int:
        """Upper bound of a slot's compressed bytes (LZ4's own bound), for frames that cannot be
        compressed."""
        row = sum(n + n // 255 + 16 for n in map(self.nbytes, range(self.per_row)))
        return self.rows * row


def ring_bytes(shape: SlotShape, stored: int, ratio: float) -> int:
    """Return the bytes of the ring of a shard with ``stored`` slots whose frames shrink by
    ``ratio``; at least the bytes of one slot that cannot be compressed."""
    blocks = [Blocks.of(shape, leaf) for leaf in shape.stacks.values()]
    raw = stored * sum(b.frames * b.rows * b.frame_bytes for b in blocks)
    return max(int(raw / ratio), sum(b.most for b in blocks))


class CompressedFrames(SharedViews):
    """The rings of all shards, and the positions of each slot's blocks in them, in shared memory.

    ``slots``: number of slots of each shard; ``rings``: bytes of each shard's ring.
    """

    def __init__(self, shape: SlotShape, slots: Sequence[int], rings: Sequence[int]) -> None:
        lz4_block()
        self.shape = shape
        self._rings = list(rings)
        self._arrays = SharedArrays(self.layout(shape, sum(slots), sum(rings)))
        self._attach()

    @staticmethod
    def layout(shape: SlotShape, slots: int, ring: int) -> Layout:
        arrays: dict[str, tuple[tuple[int, ...], str]] = {"ring": ((ring,), "uint8")}
        for name, leaf in shape.stacks.items():
            each = (slots, shape.rows, Blocks.of(shape, leaf).per_row)
            arrays |= {f"at/{name}": (each, "int64"), f"size/{name}": (each, "int32")}
        return arrays

    @classmethod
    def nbytes(cls, shape: SlotShape, slots: int, ring: int) -> int:
        return layout_bytes(cls.layout(shape, slots, ring))

    def _attach(self) -> None:
        self.ring: npt.NDArray[np.uint8] = self._arrays["ring"]

    def where(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return the offsets in the ring and the sizes of the blocks of a leaf, both in bytes,
        [slots, rows, blocks]."""
        return self._arrays[f"at/{name}"], self._arrays[f"size/{name}"]

    def ring_of(self, shard: int) -> tuple[int, int]:
        """Return offset and size of a shard's ring, in bytes."""
        return sum(self._rings[:shard]), self._rings[shard]

    def columns(self, slots: TrajectorySlots) -> dict[str, StackColumn]:
        """Return the readers of the stacks of STORED slots, by leaf."""
        return {
            name: CompressedColumn(name, leaf, slots, self)
            for name, leaf in self.shape.stacks.items()
        }


class CompressedColumn(StackColumn):
    """Reads one leaf's stacks of STORED slots."""

    def __init__(
        self, name: str, leaf: ArraySpec, slots: TrajectorySlots, frames: CompressedFrames
    ) -> None:
        super().__init__(
            name, leaf, slots.arrays.tensor(f"obs/{name}"), slots.first, slots.frame_buffer
        )
        self._blocks = blocks = Blocks.of(frames.shape, leaf)
        self._expected = [blocks.nbytes(i) for i in range(blocks.per_row)]
        at, size = frames.where(name)
        self._at, self._size = at.reshape(-1), size.reshape(-1)
        self._ring = frames.ring
        self._lz4 = lz4_block()
        self._broken: set[int] = set()
        self._scratch = np.empty((0, blocks.depth * blocks.frame_bytes), np.uint8)

    def assert_whole(self, slots: Indices) -> None:
        broken, self._broken = self._broken.intersection(slots.tolist()), set()
        assert not broken, f"the frames of the stored slots {sorted(broken)} are damaged"

    def read_pair(
        self, slot: Indices, t: Indices, later: Indices, row: Indices
    ) -> tuple[torch.Tensor, torch.Tensor]:
        now = stack_index(self._first, slot, t, row, self.depth)
        then = stack_index(self._first, slot, later, row, self.depth)
        index = np.concatenate((now.frame, then.frame), axis=1)
        frames, chosen = self._unpacked(slot, index, row)  # once: the two share most blocks
        selected = (
            frames.index_select(0, torch.from_numpy(half.reshape(-1)))
            for half in (chosen[:, : self.depth], chosen[:, self.depth :])
        )
        shape = (*now.frame.shape, *frames.shape[1:])
        obs, next_obs = (stacks.view(shape) for stacks in selected)
        return self._padded(obs, now.before), self._padded(next_obs, then.before)

    def _fetch(
        self, slot: Indices, index: Indices, row: Indices, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        frames, chosen = self._unpacked(slot, index, row)
        places = None if into is None else into.flatten(0, 1)
        selected = torch.index_select(frames, 0, torch.from_numpy(chosen.reshape(-1)), out=places)
        return selected.view(*index.shape, *frames.shape[1:])

    def _unpacked(
        self, slot: Indices, index: Indices, row: Indices
    ) -> tuple[torch.Tensor, Indices]:
        """Return decompressed frames [N, ...], valid until the next call, and the positions [B, k]
        in them of the frames ``index`` [B, k] of these slots and rows."""
        blocks = self._blocks
        block, within = np.divmod(index, blocks.depth)
        keys = (slot * blocks.rows + row)[:, None] * blocks.per_row + block
        unique, inverse = np.unique(keys, return_inverse=True)
        if len(unique) > len(self._scratch):
            self._scratch = np.empty((len(unique), blocks.depth * blocks.frame_bytes), np.uint8)
        where = zip(unique.tolist(), self._at[unique].tolist(), self._size[unique], strict=True)
        for out, (key, at, size) in zip(self._scratch, where, strict=False):
            self._unpack(key, at, int(size), out)
        frames = self._scratch.view(self._frames.dtype).reshape(-1, *self._frames.shape[3:])
        return torch.from_numpy(frames), inverse.reshape(index.shape) * blocks.depth + within

    def _unpack(self, key: int, at: int, size: int, out: npt.NDArray[np.uint8]) -> None:
        """Decompress one block. A block that is overwritten meanwhile gives garbage, or zeros."""
        slot_row, block = divmod(key, len(self._expected))
        expected = self._expected[block]
        most = 2 * expected + 16  # the size may be garbage
        packed = self._ring[at : at + min(max(size, 0), most)].tobytes()
        try:
            data = self._lz4.decompress(packed, uncompressed_size=expected)
        except self._lz4.LZ4BlockError:
            data = b""
        if len(data) == expected:
            out[:expected] = np.frombuffer(data, np.uint8)
        else:
            out.fill(0)
            self._broken.add(slot_row // self._blocks.rows)


class FrameStore:
    """A shard's ring, and the frame buffers that the shard lends to slots. Only the shard's process
    uses it."""

    def __init__(
        self, shard: int, frames: CompressedFrames, slots: TrajectorySlots, buffers: range
    ) -> None:
        self._frames = frames
        self._slots = slots
        self._begin, size = frames.ring_of(shard)
        self._ring = Ring(size)
        self._buffers = buffers
        self._free_buffers = deque(buffers)
        self._lz4 = lz4_block()

    @property
    def used(self) -> int:
        """Bytes of the ring that hold frames."""
        return self._ring.used

    def lend(self, slot: int) -> None:
        """Lend a frame buffer to a slot, which an actor is going to write."""
        self._slots.frame_buffer[slot] = self._free_buffers.popleft()

    def pack(self, slot: int) -> list[bytes]:
        """Return the compressed blocks of a slot, in the order leaf, row, time."""
        packed = []
        for name, leaf in self._frames.shape.stacks.items():
            blocks = Blocks.of(self._frames.shape, leaf)
            frames = self._slots.arrays[f"obs/{name}"][self._slots.frame_buffer[slot]]
            for row in range(blocks.rows):
                of_row = np.ascontiguousarray(frames[:, row]).reshape(-1).view(np.uint8)
                for block in range(blocks.per_row):
                    start = block * blocks.depth * blocks.frame_bytes
                    data = of_row[start : start + blocks.nbytes(block)]
                    packed.append(self._lz4.compress(data, store_size=False))
        return packed

    def store(self, slot: int, packed: list[bytes]) -> bool:
        """Copy a slot's blocks into the ring and take its frame buffer back; return False if there
        is no room."""
        at = self._take(slot, np.array([len(block) for block in packed]))
        if at is None:
            return False
        data = np.frombuffer(b"".join(packed), np.uint8)
        self._frames.ring[at : at + len(data)] = data
        self._free_buffers.append(int(self._slots.frame_buffer[slot]))
        return True

    def _take(self, slot: int, sizes: npt.NDArray[np.int64]) -> int | None:
        """Reserve room in the ring for a slot's blocks of these ``sizes`` (bytes). Return its
        offset, or None if there is not enough."""
        start = self._ring.take(int(sizes.sum()))
        if start is None:
            return None
        at = self._begin + start
        offsets = at + np.cumsum(sizes) - sizes
        done = 0
        for name in self._frames.shape.stacks:
            where, size = self._frames.where(name)
            until = done + where[slot].size
            where[slot] = offsets[done:until].reshape(where[slot].shape)
            size[slot] = sizes[done:until].reshape(size[slot].shape)
            done = until
        return at

    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the compressed frames of each stored slot, oldest first, as views of the ring."""
        for begin, end in self._ring.pieces:
            yield self._frames.ring[self._begin + begin : self._begin + end]

    def sizes(self, slots: Indices) -> dict[str, npt.NDArray[np.int32]]:
        """Return the sizes in bytes of the blocks in `pieces`, for each leaf [slots, rows,
        blocks]."""
        return {f"sizes/{n}": self._frames.where(n)[1][slots] for n in self._frames.shape.stacks}

    def restore(
        self, slots: Indices, arrays: Mapping[str, npt.NDArray[Any]], beat: Callable[[], None]
    ) -> None:
        """Restore the `pieces` of these slots, oldest first, into the empty ring, from
        ``arrays["frames"]``, which has them one after the other, and from their `sizes`."""
        names = [f"sizes/{name}" for name in self._frames.shape.stacks]
        done = 0
        for i, slot in enumerate(slots.tolist()):
            sizes = np.concatenate([arrays[name][i].reshape(-1) for name in names])
            at = self._take(slot, sizes.astype(np.int64))
            assert at is not None, "the ring is as large as the one that was saved"
            length = int(sizes.sum())
            self._frames.ring[at : at + length] = arrays["frames"][done : done + length]
            done += length
            beat()

    def take_over(self, stored: Sequence[int], raw: Collection[int]) -> None:
        """Take over the ring of the shard's previous process, which was killed. ``stored``: the
        slots with frames in it, oldest first; ``raw``: the slots that have a frame buffer."""
        where = [self._frames.where(name) for name in self._frames.shape.stacks]
        for slot in stored:
            begin = int(where[0][0][slot].flat[0]) - self._begin
            self._ring.append(begin, begin + sum(int(size[slot].sum()) for _, size in where))
        lent = {int(self._slots.frame_buffer[slot]) for slot in raw}
        self._free_buffers = deque(buffer for buffer in self._buffers if buffer not in lent)

    def drop_oldest(self) -> None:
        """Free the bytes of the oldest slot in the ring, which is evicted."""
        self._ring.free_oldest()


class Ring:
    """Contiguous pieces of ``size`` bytes, taken at one end and freed at the other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.pieces: deque[tuple[int, int]] = deque()
        """(begin, end), oldest first."""
        self.used = 0

    def take(self, length: int) -> int | None:
        """Take a new piece of ``length`` bytes; return its offset, or None if it does not fit."""
        assert 0 < length <= self._size, (length, self._size)
        begin = self._room(length)
        if begin is not None:
            self.append(begin, begin + length)
        return begin

    def append(self, begin: int, end: int) -> None:
        """Add a piece that is known to be free."""
        self.pieces.append((begin, end))
        self.used += end - begin

    def _room(self, length: int) -> int | None:
        if not self.pieces:
            return 0
        oldest, (newest, end) = self.pieces[0][0], self.pieces[-1]
        if newest < oldest:  # the free part is between them
            return end if length <= oldest - end else None
        if length <= self._size - end:
            return end
        return 0 if length <= oldest else None

    def free_oldest(self) -> None:
        begin, end = self.pieces.popleft()
        self.used -= end - begin

"""Copies of the replay's frames on the learner's device, so that samples are gathered there.

Frames stay in the slots as before. A slot whose frames have a place on the device is copied to it
as a whole when one of its items is drawn for the first time after it was stored. From then on a
drawn item costs its indices instead of two stacks of frames, which for images are nearly all of a
sample. With places for some of the slots only, the items of the other slots are gathered on the CPU
and copied as before. Only the learner's process knows of the copies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.replay.compressed import CompressedFrames
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.rollouts.stacks import StackColumn, StackReader, stack_index
from sampleforge.runtime.machine import human_bytes
from sampleforge.shared.staging import wait_for_copies

Indices = npt.NDArray[np.int64]
NOT_COPIED = -1


class DeviceFrames:
    """Places for the frames of the first ``places`` of the ``slots``, on ``device``.

    The slots must have their frames in them, not compressed. Raises torch.OutOfMemoryError if the
    device has not enough memory."""

    def __init__(self, slots: TrajectorySlots, places: int, device: torch.device) -> None:
        assert slots.stacks and slots.shape.frame_buffers is None, "no raw frames of stacks"
        self._slots = slots
        self._device = device
        self.places = min(places, slots.count)
        self._copied = np.full(self.places, NOT_COPIED, np.int64)  # the generation that is here
        self._host = {name: slots.arrays.tensor(f"obs/{name}") for name in slots.stacks}
        self.frames = {
            name: torch.empty((self.places, *column.shape[1:]), dtype=column.dtype, device=device)
            for name, column in self._host.items()
        }

    def follow(self, slot: Indices, generation: Indices) -> None:
        """Copy the slots (int64 [B]) of a sample that have a place and are not there yet.

        ``generation`` [B] are those that the items were drawn with. Slots of an item that was
        evicted since are left out: an actor may be writing into them."""
        generations = self._slots.generation
        near = slot < self.places
        drawn, index = np.unique(slot[near], return_index=True)
        now = generation[near][index]
        wanted = (self._copied[drawn] != now) & (generations[drawn] == now)
        drawn, now = drawn[wanted], now[wanted]
        if not len(drawn):
            return
        self._copied[drawn] = NOT_COPIED
        for name, host in self._host.items():
            for at in drawn.tolist():
                self.frames[name][at].copy_(host[at], non_blocking=True)
        wait_for_copies(self._device)
        whole = generations[drawn] == now  # not evicted, and written again, meanwhile
        self._copied[drawn[whole]] = now[whole]

    def columns(self) -> dict[str, DeviceColumn]:
        """Return the columns that read stacks of the slots, by leaf."""
        leaves = self._slots.shape.stacks
        return {
            name: DeviceColumn(
                column, self._slots.first, leaves[name].stack == "zero", self.frames[name]
            )
            for name, column in self._slots.stacks.items()
        }


class DeviceColumn(StackReader):
    """One observation leaf of all slots; it reads stacks like a `StackColumn`, onto the device.

    ``host`` reads the slots without a place; ``frames`` [places, k-1 + T+1, rows, ...] are on the
    device; ``zeros``: the frames before an episode's first are zero."""

    def __init__(
        self,
        host: StackColumn,
        first: npt.NDArray[np.bool_],
        zeros: bool,
        frames: torch.Tensor,
    ) -> None:
        self._host = host
        self._first = first
        self._zeros = zeros
        self._shape = frames.shape
        self._flat = frames.flatten(0, 2)

    def read(self, slot: Indices, t: Indices, row: Indices) -> torch.Tensor:
        """Return a copy of obs[t] of these slots and rows (int64 [B] each), [B, k, ...]. Of slots
        with a place, `DeviceFrames.follow` must have copied them."""
        near = slot < self._shape[0]
        if near.all():
            return self._near(slot, t, row)
        far = self._host.read(slot[~near], t[~near], row[~near]).to(self._flat.device)
        if not near.any():
            return far
        stacks = far.new_empty((len(slot), *far.shape[1:]))
        stacks.index_copy_(0, self._index(np.flatnonzero(~near)), far)
        at = self._index(np.flatnonzero(near))
        return stacks.index_copy_(0, at, self._near(slot[near], t[near], row[near]))

    def _near(self, slot: Indices, t: Indices, row: Indices) -> torch.Tensor:
        index, before = stack_index(self._first, slot, t, row, self._host.depth)
        _, per_slot, rows = self._shape[:3]
        at = self._index(((slot[:, None] * per_slot + index) * rows + row[:, None]).reshape(-1))
        stacks = self._flat.index_select(0, at).view(*index.shape, *self._shape[3:])
        if self._zeros:
            none = self._index(np.flatnonzero(before))
            stacks.flatten(0, 1).index_fill_(0, none, 0)
        return stacks

    def _index(self, index: Indices) -> torch.Tensor:
        host = torch.from_numpy(index)
        return host.to(self._flat.device, non_blocking=True)


def stack_readers(
    slots: TrajectorySlots, frames: CompressedFrames | None, copies: DeviceFrames | None
) -> Mapping[str, StackReader]:
    """Return the readers of the stacks of stored slots, by leaf. ``frames``: the
    compressed frames, None if frames are in the slots; ``copies``: those on the learner's
    device."""
    if copies is not None:
        return copies.columns()
    return slots.stacks if frames is None else frames.columns(slots)


def frame_places(shape: SlotShape, slots: int, gib: float, device: str) -> int:
    """Return the number of slots whose frames fit into ``gib`` GiB of the learner's device; 0: none
    are kept there. Raises ConfigError if the flag does not fit the run."""
    flag = f"--replay-gpu-memory {gib:g}"
    if not gib:
        return 0
    if not device.startswith("cuda"):
        raise ConfigError(
            f"{flag}: the learner is on the {device}; leave it out, or learn on a GPU (--device)"
        )
    if not shape.stacks:
        raise ConfigError(
            f"{flag} keeps stacks of frames on the GPU, but {shape.spec.env_id} declares none of "
            f"its observation leaves ({', '.join(shape.spec.observations)}) as a stack; leave it "
            "out, or name the stacks in the environment's metadata['frame_stack']"
        )
    each = frame_bytes(shape)
    places = min(slots, int(gib * 2**30 / each))
    if not places:
        raise ConfigError(
            f"{flag}: the frames of one slot need {human_bytes(each)}; raise it, or leave it out"
        )
    return places


def frame_bytes(shape: SlotShape) -> int:
    """Return the bytes of the frames of one slot."""
    layout = shape.layout(1)
    return sum(_nbytes(layout, f"obs/{name}") for name in shape.stacks)


def _nbytes(layout: Mapping[str, tuple[tuple[int, ...], str]], name: str) -> int:
    shape, dtype = layout[name]
    return int(np.prod(shape)) * np.dtype(dtype).itemsize

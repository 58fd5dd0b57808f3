"""Stacks of frames, which are stored as single frames and rebuilt when they are read.

The T+1 stacks of k frames of a slot are stored as k-1 + T+1 frames: the whole first stack, then the
newest frame of every later one. When an episode begins within the slot (``first``), its first
stacks are padded as the environment does it (`sampleforge.spec.ArraySpec.stack`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sampleforge.config import ConfigError
from sampleforge.spec import ArraySpec

Indices = npt.NDArray[np.int64]


class StackIndex(NamedTuple):
    """The frames of B stacks. ``frame`` int64 [B, k]: indices of frames in their slots, oldest
    first; ``before`` bool [B, k]: the frames that would be before the beginning of the episode."""

    frame: Indices
    before: npt.NDArray[np.bool_]


def stack_index(
    first: npt.NDArray[np.bool_], slot: Indices, t: Indices, row: Indices, depth: int
) -> StackIndex:
    """Return the frames of the stacks obs[t] of these slots and rows (int64 [B] each); ``first`` is
    bool [slots, T+1, rows].

    Frames before the beginning of an episode are replaced by its first frame.
    """
    begun = np.full(len(t), depth - 1)  # steps since the episode's first observation, at most
    for age in reversed(range(depth - 1)):
        is_first = first[slot, np.maximum(t - age, 0), row] & (t >= age)
        begun[is_first] = age
    ages = np.arange(depth - 1, -1, -1)
    # obs[0] is stored whole: its frames are the first k, wherever the episode began.
    frame = t[:, None] + (depth - 1) - np.minimum(ages, begun[:, None])
    return StackIndex(frame, ages > begun[:, None])


def check_first_stacks(
    name: str, leaf: ArraySpec, stacks: npt.NDArray[Any], first: npt.NDArray[np.bool_]
) -> None:
    """Raise ConfigError unless the first stacks of episodes are padded as ``leaf`` says. ``stacks``
    [..., rows, k, ...]: some stacks of the leaf ``name``; ``first`` bool [..., rows]: which ones
    are the first of an episode. It looks at these alone."""
    begins = stacks[first]
    padding = begins[:, -1:] if leaf.stack == "reset" else np.zeros_like(begins[:, -1:])
    for stack, pad, at in zip(begins, padding, np.argwhere(first).tolist(), strict=True):
        if stack[:-1].tobytes() != pad.tobytes() * (len(stack) - 1):
            raise _no_stack(name, leaf, at[-1])


def _no_stack(name: str, leaf: ArraySpec, row: int) -> ConfigError:
    return ConfigError(
        f"the environment says that its observation leaf {name!r} is a stack of {leaf.shape[0]} "
        "frames of which each step adds one, the newest in the last place, with "
        f"{leaf.stack!r} before an episode's first, but that of row {row} is not; take {name!r} "
        "out of metadata['frame_stack'], or correct the environment"
    )


class StackReader(ABC):
    """Reads stacks of frames of one observation leaf of all slots."""

    @abstractmethod
    def read(self, slot: Indices, t: Indices, row: Indices) -> torch.Tensor:
        """Return a copy of obs[t] of these slots and rows (int64 [B] each), [B, k, ...]."""

    def read_pair(
        self, slot: Indices, t: Indices, later: Indices, row: Indices
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of obs[t] and obs[later], [B, k, ...] each.

        Two arrays are faster than one of twice the size: the allocator reuses blocks of up to 32
        MiB only, and new memory takes ten times as long as the copying."""
        return self.read(slot, t, row), self.read(slot, later, row)

    def assert_whole(self, slots: Indices) -> None:
        """Raise AssertionError if the frames of one of these slots, which were not evicted, cannot
        be read. Raw frames can always be read."""
        return


class StackColumn(StackReader):
    """One observation leaf of all slots, as single frames [frame buffers, k-1 + T+1, rows, ...].

    ``first`` is the slots' column, bool [slots, T+1, rows]; ``frame_buffer`` int64 [slots] is the
    index of each slot's frames along the first axis.
    """

    def __init__(
        self,
        name: str,
        leaf: ArraySpec,
        frames: torch.Tensor,
        first: npt.NDArray[np.bool_],
        frame_buffer: npt.NDArray[np.int64],
    ) -> None:
        self.name = name
        self.depth = leaf.shape[0]
        self._leaf = leaf
        self._first = first
        self._frame_buffer = frame_buffer
        self._frames: npt.NDArray[Any] = frames.numpy()
        self._flat = frames.flatten(0, 2)

    def begin(self, slot: int, stacks: npt.NDArray[Any]) -> None:
        """Write obs[0], [rows, k, ...]."""
        self._frames[self._frame_buffer[slot], : self.depth] = stacks.swapaxes(0, 1)

    def put(self, slot: int, t: int, stacks: npt.NDArray[Any]) -> None:
        """Write obs[t], [rows, k, ...], of which only the newest frame is stored."""
        self._frames[self._frame_buffer[slot], t + self.depth - 1] = stacks[:, -1]

    def newest(self, slot: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return a view of the newest frames of obs[begin] to obs[end - 1], [steps, rows, ...]."""
        frames: npt.NDArray[Any] = self._frames[self._frame_buffer[slot]]
        return frames[begin + self.depth - 1 : end + self.depth - 1]

    def read(self, slot: Indices, t: Indices, row: Indices) -> torch.Tensor:
        """Return a copy of obs[t] of these slots and rows (int64 [B] each), [B, k, ...].

        ``t`` must be within the slot. If the columns change meanwhile, the copy is garbage, but
        this does not fail."""
        index, before = stack_index(self._first, slot, t, row, self.depth)
        return self._padded(self._fetch(slot, index, row), before)

    def read_rows(
        self, slot: Indices, t: Indices, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a copy of obs[t] of all rows of these slots (int64 [N] each), [N * rows, k, ...].
        ``into``: the memory to copy to, of that shape."""
        rows = self._frames.shape[2]
        row = np.tile(np.arange(rows), len(slot))
        slot, t = np.repeat(slot, rows), np.repeat(t, rows)
        index, before = stack_index(self._first, slot, t, row, self.depth)
        return self._padded(self._fetch(slot, index, row, into), before)

    def check(self, slot: int, t: int, stacks: npt.NDArray[Any]) -> None:
        """Raise ConfigError unless reading obs[t] returns ``stacks`` [rows, k, ...]."""
        rebuilt = self.read_rows(np.array([slot]), np.array([t])).numpy()
        if rebuilt.tobytes() == stacks.tobytes():
            return
        row = next(i for i, stack in enumerate(stacks) if rebuilt[i].tobytes() != stack.tobytes())
        raise _no_stack(self.name, self._leaf, row)

    def _padded(self, stacks: torch.Tensor, before: npt.NDArray[np.bool_]) -> torch.Tensor:
        if self._leaf.stack == "zero":
            none = torch.from_numpy(np.flatnonzero(before))
            stacks.flatten(0, 1).index_fill_(0, none, 0)  # a mask takes 80 times as long
        return stacks

    def _fetch(
        self, slot: Indices, index: Indices, row: Indices, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the frames ``index`` [B, k] of these slots and rows, [B, k, ...]."""
        per_slot, rows = self._frames.shape[1:3]
        at = (self._frame_buffer[slot][:, None] * per_slot + index) * rows + row[:, None]
        places = None if into is None else into.flatten(0, 1)
        frames = torch.index_select(self._flat, 0, torch.from_numpy(at.reshape(-1)), out=places)
        return frames.view(*index.shape, *self._flat.shape[1:])

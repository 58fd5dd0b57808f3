"""The state of a replay shard beside its slots, in shared memory, where it outlives the process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampleforge.replay.sum_tree import padded_leaves
from sampleforge.shared.arrays import SharedArrays


@dataclass(frozen=True)
class ShardSlots:
    """The slots ``first`` to ``first + count - 1``, which belong to shard ``index``: at most
    ``capacity`` of them are STORED. Actors write to the others, so ``count`` exceeds ``capacity``.
    """

    index: int
    first: int
    count: int
    capacity: int


class ShardMemory:
    """The priorities of the items of one shard, and when each of its slots was stored.

    It and the slots' owners are all that a shard needs to go on in a new process; upper levels of
    the tree and counters follow from them. Only the shard writes it, and it can be pickled to child
    processes. ``items``: number of items of a slot; without ``prioritised`` there are no
    priorities.
    """

    def __init__(self, slots: int, items: int, *, prioritised: bool) -> None:
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "order": ((slots,), "int64"),
            "born": ((slots,), "int64"),
        }
        if prioritised:
            arrays["leaves"] = ((padded_leaves(slots * items),), "float64")
        self.__setstate__((prioritised, SharedArrays(arrays)))

    def __getstate__(self) -> tuple[bool, SharedArrays]:
        return self._prioritised, self._arrays

    def __setstate__(self, state: tuple[bool, SharedArrays]) -> None:
        self._prioritised, self._arrays = state
        arrays = self._arrays
        self.order: npt.NDArray[np.int64] = arrays["order"]
        """[slots]: number of the insertion that stored each slot, from 1."""
        self.born: npt.NDArray[np.int64] = arrays["born"]
        """[slots]: items that the shard had inserted before."""
        self.leaves: npt.NDArray[np.float64] | None = (
            arrays["leaves"] if self._prioritised else None
        )
        """The leaves of the shard's `SumTree`; None if all items are equally likely."""

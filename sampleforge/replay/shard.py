"""One shard of the replay: the slots that hold experience, and the priorities of their items.

A replay consists of trajectory slots with a longer life. The shard owns its slots whenever no actor
has them:

    FREE -> (leased) WRITING -> READY -> STORED -> (evicted, oldest first) FREE

The shard belongs to one process, which alone writes its tree; there is no lock. A transition is
identified by its item, ``slot * items_per_slot + t * rows + row``, and by the generation of its
slot. With a recurrent core an item is a sequence, the t-th of its row. Eviction raises the
generation and sets the priorities to 0 before the slot is leased to an actor. A reader with an
(item, generation) compares the generation after its copy, and so notices that the item was evicted.

If the process is killed, its successor goes on with what is in shared memory: a slot belongs to the
replay from the store that marks it as STORED to the one that marks it as FREE.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sampleforge.replay.compressed import FrameStore
from sampleforge.replay.histograms import Counts, count_positive, evenly
from sampleforge.replay.items import first_estimates
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.sum_tree import SumTree, padded_leaves
from sampleforge.rollouts.slots import Owner, TrajectorySlots
from sampleforge.shared.arrays import SharedArrays, SharedViews


@dataclass(frozen=True)
class ShardSlots:
    """The slots ``first`` to ``first + count - 1``, which belong to shard ``index``: at most
    ``capacity`` of them are STORED. Actors write to the others, so ``count`` exceeds ``capacity``.
    """

    index: int
    first: int
    count: int
    capacity: int


class ShardMemory(SharedViews):
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
        self._prioritised, self._arrays = prioritised, SharedArrays(arrays)
        self._attach()

    def _attach(self) -> None:
        arrays = self._arrays
        self.order: npt.NDArray[np.int64] = arrays["order"]
        """[slots]: number of the insertion that stored each slot, from 1."""
        self.born: npt.NDArray[np.int64] = arrays["born"]
        """[slots]: items that the shard had inserted before."""
        self.leaves: npt.NDArray[np.float64] | None = (
            arrays["leaves"] if self._prioritised else None
        )
        """The leaves of the shard's `SumTree`; None if all items are equally likely."""


Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sample(NamedTuple):
    """A sample of B items, [B] each: the items, the generations of their slots, and
    ``scaled_probability``, the number of items in all shards times the probability of this item (1
    if all are equally likely)."""

    items: Indices
    generations: Indices
    scaled_probability: Floats


@dataclass(frozen=True)
class Prioritisation:
    """The priority of an item: ``(|TD error| + epsilon) ** alpha``; alpha 0 is uniform. Raises
    ValueError if an error is negative or not finite.

    ``estimated``: whether the first error of an item is known when it is inserted. If not, it has
    the largest priority of those that are stored (Schaul et al. 2016, arXiv 1511.05952,
    algorithm 1), or 1 if there are none."""

    alpha: float
    epsilon: float
    estimated: bool = True

    def __call__(self, errors: npt.NDArray[np.float32]) -> Floats:
        if not (errors.min() >= 0 and errors.max() < np.inf):  # NaN fails every comparison
            good = np.isfinite(errors) & (errors >= 0)
            raise ValueError(
                f"TD errors must be finite and not negative, but {np.count_nonzero(~good)} of "
                f"{errors.size} are not, such as {errors[~good][0]}; an environment that gives "
                "rewards or observations that are not finite makes them so: correct it"
            )
        priorities: Floats = (errors.astype(np.float64) + self.epsilon) ** self.alpha
        return priorities


class ReplayShard:
    """The part ``own`` of ``slots``, with the priorities in ``memory``.

    With alpha 0 there is no tree: items are drawn uniformly. ``slots`` must have the columns of
    `sampleforge.replay.items.ITEM_COLUMNS`, or sequences. ``seed``: of the draws, another one in
    each life of the shard. ``frames``: the store of compressed frames, if frames are compressed; if
    it is full, fewer than the capacity are STORED.
    """

    def __init__(
        self,
        own: ShardSlots,
        slots: TrajectorySlots,
        memory: ShardMemory,
        priority: Prioritisation,
        replay_counters: ReplayCounters,
        seed: list[int],
        frames: FrameStore | None = None,
    ) -> None:
        assert 1 <= own.capacity < own.count, own
        self._index, self._first, self._count = own.index, own.first, own.count
        self._capacity = own.capacity
        self._slots = slots
        self._memory = memory
        self._priority = priority
        self._replay_counters = replay_counters
        self._random = np.random.default_rng(seed)
        self.frames = frames
        self._items = slots.shape.items
        self._usable, self._errors = first_estimates(slots)
        self._tree = None
        if memory.leaves is not None:
            self._tree = SumTree(own.count * self._items, memory.leaves)
        self._stored: deque[int] = deque()  # oldest first
        self._drawable: tuple[tuple[int, int], Indices] = (0, 0), np.empty(0, np.int64)
        self._free: deque[int] = deque(self._all)
        self._inserts = 0

    @property
    def _all(self) -> range:
        """All slots of this shard."""
        return range(self._first, self._first + self._count)

    @property
    def stored_slots(self) -> tuple[int, ...]:
        """The slots that hold experience, oldest first."""
        return tuple(self._stored)

    def lease(self) -> int | None:
        """Return a free slot, which belongs to the caller until it is inserted; None if there is
        none."""
        if not self._free:
            return None
        self._replay_counters.leased[self._index] += self._items
        slot = self._free.popleft()
        if self.frames is not None:
            self.frames.lend(slot)
        return slot

    def insert(self, slot: int) -> None:
        """Store a slot that an actor has completed (READY); evict the oldest one if need be."""
        if len(self._stored) == self._capacity:
            self._evict()
        if self.frames is not None:
            self._compress(self.frames, slot)
        replay_counters, me, usable = self._replay_counters, self._index, self._usable[slot] > 0
        if self._tree is not None:
            if self._priority.estimated:
                priorities = self._priority(self._errors[slot])
            else:
                priorities = np.full(len(usable), self._tree.leaves.max() or 1.0)
            self._tree.set_range(self._first_leaf(slot), np.where(usable, priorities, 0.0))
        self._mark_inserted(slot, int(replay_counters.inserted[me]))
        self._slots.move(slot, Owner.READY, Owner.STORED)
        self._stored.append(slot)
        count = int(np.count_nonzero(usable))
        self._publish_priority_sum(count)  # before they count as stored: then they can be drawn
        replay_counters.stored[me] += count
        replay_counters.inserted[me] += count
        replay_counters.leased[me] -= self._items

    def draw(self, count: int) -> Sample:
        """Draw ``count`` items in proportion to their priorities. At least one must be stored."""
        (sample,) = self.draw_batches(count, 1)
        return sample

    def draw_batches(self, count: int, batches: int) -> Iterator[Sample]:
        """Draw samples of ``count`` items, as `draw` does ``batches`` times; fewer and larger array
        operations make it faster. A sample is counted when it is taken from the iterator."""
        replay_counters, me = self._replay_counters, self._index
        if self._tree is None:
            leaves = np.concatenate([self._draw_uniformly(count) for _ in range(batches)])
            scaled_probability = np.ones(len(leaves))
        else:
            leaves = self._tree.draw(count, self._random, batches)
            scale = float(replay_counters.stored.sum()) / float(replay_counters.priority_sum.sum())
            scaled_probability = self._tree.leaves.take(leaves) * scale
        slots = leaves // self._items
        ages = (replay_counters.inserted[me] - self._memory.born.take(slots)).reshape(batches, -1)
        slots += self._first
        generations = self._slots.generation.take(slots)
        leaves += self._first * self._items
        for batch, age in enumerate(ages.sum(1).tolist()):
            here = slice(batch * count, (batch + 1) * count)
            replay_counters.drawn[me] += count
            replay_counters.age_sum[me] += age
            yield Sample(leaves[here], generations[here], scaled_probability[here])

    def update(self, items: Indices, generations: Indices, errors: npt.NDArray[np.float32]) -> None:
        """Set new priorities, from TD ``errors`` [B], for items drawn before; items that were
        evicted since are left out. Raises ValueError, and changes nothing, if an error is negative
        or not finite."""
        priorities = self._priority(errors)
        still_valid = self._slots.generation.take(items // self._items) == generations
        stale = len(items) - int(np.count_nonzero(still_valid))
        if stale:
            self._replay_counters.stale_updates[self._index] += stale
            items, priorities = items[still_valid], priorities[still_valid]
        if self._tree is not None and len(items):
            self._tree.set(items - self._first * self._items, priorities)
            self._publish_priority_sum()

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the shard's own state, without the contents of its slots: arrays, with the stored
        slots oldest first, and values for JSON."""
        slots = np.array(self._stored, np.int64)
        local = slots - self._first
        arrays: dict[str, Array] = {
            "slots": local,
            "born": self._memory.born[local],
            "generation": self._slots.generation[self._first : self._first + self._count],
        }
        if self._tree is not None:
            arrays["priorities"] = self._tree.leaves.reshape(-1, self._items)[local]
        if self.frames is not None:
            arrays |= self.frames.sizes(slots)
        names = ("stored", "inserted", "full", "stale_updates")
        plain = {name: getattr(self._replay_counters, name)[self._index].item() for name in names}
        learning = bool(self._replay_counters.learning[0] or self._replay_counters.begun[0])
        return arrays, {**plain, "learning": learning, "random": self._random.bit_generator.state}

    def slots_for(self, local: Indices) -> Indices:
        """Return the slots that take the contents of the slots ``local`` of a `snapshot`: the same
        ones, or free ones if there are fewer slots now, because there are fewer actors."""
        assert len(local) <= self._capacity, (len(local), self._capacity)
        free = iter(np.setdiff1d(np.arange(self._count), local).tolist())
        slots = [at if at < self._count else next(free) for at in local.tolist()]
        return np.array(slots, np.int64) + self._first

    def restore(
        self, slots: Indices, arrays: Mapping[str, Array], plain: Mapping[str, Any]
    ) -> None:
        """Restore a `snapshot` whose experience is in ``slots`` already. The shard must be new."""
        assert not self._stored
        replay_counters, me = self._replay_counters, self._index
        stored = set(slots.tolist())
        self._free = deque(slot for slot in self._all if slot not in stored)
        # No (item, generation) of the previous run is valid, whichever slot has its experience.
        self._slots.generation[self._all] = arrays["generation"].max() + 1
        for i, slot in enumerate(slots.tolist()):
            self._mark_inserted(slot, int(arrays["born"][i]))
            self._slots.move(slot, Owner.FREE, Owner.STORED)
            self._stored.append(slot)
            if self._tree is not None:
                self._tree.set_range(self._first_leaf(slot), arrays["priorities"][i])
        for name in ("stored", "inserted", "full", "stale_updates"):
            getattr(replay_counters, name)[me] = plain[name]
        self._random.bit_generator.state = plain["random"]
        if self.frames is not None:
            replay_counters.frame_bytes[me] = self.frames.used
        self._publish_priority_sum()
        replay_counters.restoring[me] = False  # last: the learner may begin

    def clear(self) -> None:
        """Make all slots FREE: the shard's previous process was killed while it restored a
        `snapshot`. The shard must be new."""
        assert not self._stored
        self._slots.owner[self._all] = Owner.FREE
        if self._tree is not None:
            self._tree.clear()

    def take_over(self, leased: Collection[int]) -> list[int]:
        """Take over the slots of the shard's previous process, which was killed. The shard must be
        new. ``leased``: the slots that actors have. Return the slots that the previous process had
        taken from their actors and not stored: `insert` them next."""
        assert not self._stored
        owner, order = self._slots.owner, self._memory.order
        own = [slot for slot in self._all if slot not in leased]
        stored = [slot for slot in own if owner[slot] == Owner.STORED]
        taken = [slot for slot in own if owner[slot] == Owner.READY]
        free = [slot for slot in own if owner[slot] == Owner.FREE]
        stored.sort(key=lambda slot: order[slot - self._first])
        self._stored, self._free = deque(stored), deque(free)
        self._inserts = int(order[stored[-1] - self._first]) if stored else 0
        if self._tree is not None:
            for slot in set(self._all).difference(stored):
                self._tree.set_range(self._first_leaf(slot), np.zeros(self._items))
        if self.frames is not None:
            self.frames.take_over(stored, {*leased, *taken})
        self._count_again(len(leased) + len(taken))
        if not taken:  # else `insert` does it, with something to draw
            self._publish_priority_sum()
        return taken

    def _count_again(self, not_stored: int) -> None:
        """Set the counters to what is stored; ``not_stored``: number of slots that actors have, or
        that are to be inserted."""
        replay_counters, me, born = self._replay_counters, self._index, self._memory.born
        replay_counters.leased[me] = not_stored * self._items
        counts = np.count_nonzero(self._usable[list(self._stored)], axis=1)
        replay_counters.stored[me] = counts.sum()
        if self._stored:
            inserted = born[self._stored[-1] - self._first] + counts[-1]
            replay_counters.inserted[me] = max(replay_counters.inserted[me], inserted)
        if self.frames is not None:
            replay_counters.frame_bytes[me] = self.frames.used

    def _mark_inserted(self, slot: int, born: int) -> None:
        """Record that ``slot`` is the newest; ``born``: items inserted before."""
        self._inserts += 1
        self._memory.order[slot - self._first] = self._inserts
        self._memory.born[slot - self._first] = born

    def count_priorities(self) -> Counts:
        """Return `count_positive` of the priorities, or of an evenly spaced part of them; all zero
        without a tree."""
        leaves = np.empty(0) if self._tree is None else self._tree.leaves
        return count_positive(evenly(leaves, self._items))

    def _compress(self, frames: FrameStore, slot: int) -> None:
        """Compress the frames of a slot into the store. Frames that compress badly may need the
        room of more than one older slot, which is evicted."""
        packed = frames.pack(slot)
        while not frames.store(slot, packed):
            self._evict()
        self._replay_counters.frame_bytes[self._index] = frames.used

    def _evict(self) -> None:
        slot = self._stored.popleft()
        usable = np.count_nonzero(self._usable[slot])
        self._replay_counters.full[self._index] = True
        self._slots.move(slot, Owner.STORED, Owner.FREE)
        if self._tree is not None:
            self._tree.set_range(self._first_leaf(slot), np.zeros(self._items))
        self._replay_counters.stored[self._index] -= usable
        if self.frames is not None:
            self.frames.drop_oldest()
        self._free.append(slot)

    def _first_leaf(self, slot: int) -> int:
        """Return the index of the leaf of a slot's first item."""
        return (slot - self._first) * self._items

    def _publish_priority_sum(self, more: int = 0) -> None:
        """Publish the sum of the priorities of what is stored and of ``more`` items, which are in
        the tree already."""
        tree, stored = self._tree, self._replay_counters.stored[self._index]
        priority_sum = float(stored + more) if tree is None else tree.total
        self._replay_counters.priority_sum[self._index] = priority_sum

    def _draw_uniformly(self, count: int) -> Indices:
        """Draw items of stored slots uniformly, and draw again in the place of items that cannot be
        learned from."""
        newest = self._inserts, len(self._stored)  # which stand for what is stored
        if self._drawable[0] != newest:
            self._drawable = newest, np.array(self._stored, np.int64) - self._first
        stored = self._drawable[1]
        usable = self._usable[self._first :].reshape(-1)
        leaves = np.empty(0, np.int64)
        while len(leaves) < count:
            at = self._random.choice(stored, count) * self._items
            at += self._random.integers(0, self._items, count)
            leaves = np.concatenate((leaves, at[usable[at] > 0]))
        return leaves[:count]

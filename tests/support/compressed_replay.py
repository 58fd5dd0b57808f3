"""A replay shard of compressed frames, beside a naive copy of what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sampleforge.replay.compressed import CompressedFrames, FrameStore, ring_bytes
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.samples import TransitionReader
from sampleforge.replay.shard import Prioritisation, ReplayShard, Sample, ShardMemory, ShardSlots
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.spec import ArraySpec, EnvSpec
from tests.support.stack_checking import ACTIONS

LEAF = ArraySpec((4, 12, 10), "uint8", stack="zero")
ROLLOUT, ROWS, LEASES = 9, 3, 2
STEPS = ROLLOUT * ROWS


class CompressedReplay:
    """A shard with compressed frames, and the naive copy of every stack that it holds."""

    def __init__(self, capacity: int, ratio: float, noise: int, leaf: ArraySpec = LEAF) -> None:
        spec = EnvSpec("fake", {"obs": leaf}, ACTIONS)
        shape = SlotShape(ROLLOUT, ROWS, spec, 0, {}, True, LEASES, finished=ITEM_COLUMNS)
        count = capacity + LEASES
        self.leaf, self.noise = leaf, noise
        self.slots = TrajectorySlots(count, shape, debug=True)
        self.frames = CompressedFrames(shape, [count], [ring_bytes(shape, capacity, ratio)])
        self.store = FrameStore(0, self.frames, self.slots, range(LEASES))
        self.replay_counters = ReplayCounters(1)
        self.own = ShardSlots(0, 0, count, capacity)
        self.memory = ShardMemory(count, STEPS, prioritised=True)
        self.shard = self.new_shard(self.store, 0)
        self.reader = TransitionReader(self.slots, self.frames)
        self.random = np.random.default_rng(0)
        self.naive: dict[int, np.ndarray[Any, Any]] = {}  # slot -> [T+1, rows, k, ...]
        self.leased = deque_of(self.shard, LEASES)

    def new_shard(self, store: FrameStore, life: int) -> ReplayShard:
        """The shard, as its process makes it."""
        priority, counters = Prioritisation(0.6, 1e-6), self.replay_counters
        return ReplayShard(self.own, self.slots, self.memory, priority, counters, [life], store)

    def replace(self) -> None:
        """A new shard in the place of one that was killed."""
        self.store = FrameStore(0, self.frames, self.slots, range(LEASES))
        self.shard = self.new_shard(self.store, 1)
        for slot in self.shard.take_over(self.leased):
            self.shard.insert(slot)
        self.leased += deque_of(self.shard, LEASES - len(self.leased))

    def insert(self) -> int:
        """One rollout of frames whose pixels take ``noise`` values, through the life of a slot."""
        slot = self.complete()
        self.store_complete()
        return slot

    def complete(self) -> int:
        """The part of an actor: a slot that is READY."""
        slots, leaf = self.slots, self.leaf
        self.ready = slot = self.leased.pop(0)
        slots.move(slot, Owner.FREE, Owner.WRITING)
        shape = (ROWS, *leaf.shape)
        stacks = self.random.integers(0, self.noise, shape).astype(leaf.dtype)
        self.naive[slot] = np.empty((ROLLOUT + 1, *shape), leaf.dtype)
        for t in range(ROLLOUT + 1):
            first = self.random.random(ROWS) < 0.2
            newest = self.random.integers(0, self.noise, (ROWS, 1, *leaf.shape[1:]))
            stacks = np.concatenate([stacks[:, 1:], newest.astype(leaf.dtype)], axis=1)
            stacks[first, :-1] = 0
            slots.first[slot, t] = first
            column = slots.stacks["obs"]
            (column.begin(slot, stacks) if t == 0 else column.put(slot, t, stacks))
            self.naive[slot][t] = stacks
        left = ROLLOUT - np.arange(ROLLOUT)[:, None]
        slots.extras["steps"][slot] = np.minimum(left, self.random.integers(1, 4, (ROLLOUT, ROWS)))
        slots.extras["td_error"][slot] = 1.0
        slots.move(slot, Owner.WRITING, Owner.READY)
        return slot

    def store_complete(self) -> None:
        """The part of the shard: it stores the slot, and leases another one."""
        self.shard.insert(self.ready)
        self.leased += deque_of(self.shard, 1)

    def everything(self) -> Sample:
        """All items that can be drawn, each once."""
        slots = np.array(self.shard.stored_slots)
        usable = self.slots.extras["steps"][slots].reshape(len(slots), -1) > 0
        items = (slots[:, None] * STEPS + np.arange(STEPS))[usable]
        return Sample(items, self.slots.generation[items // STEPS], np.ones(len(items)))

    def check(self, drawn: Any) -> int:
        """Compare what is read with the naive copies; returns how many there were."""
        found, still_valid, _ = self.reader.read(*drawn)
        slot, step = np.divmod(drawn.items[still_valid], STEPS)
        t, row = np.divmod(step, ROWS)
        after = t + self.slots.extras["steps"][slot, t, row]
        for stacks, at in ((found.obs["obs"], t), (found.next_obs["obs"], after)):
            for i, stack in enumerate(stacks.numpy()):
                assert stack.tobytes() == self.naive[slot[i]][at[i], row[i]].tobytes()
        return int(still_valid.sum())


def deque_of(shard: ReplayShard, count: int) -> list[int]:
    slots = [shard.lease() for _ in range(count)]
    return [slot for slot in slots if slot is not None]

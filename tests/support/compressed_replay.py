"""A replay shard of compressed frames, beside a naive copy of what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sampleforge.replay.compressed import CompressedFrames, FrameStore, ring_bytes
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.shard import EXTRAS, Prioritisation, ReplayShard
from sampleforge.replay.transitions import TransitionReader
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
        shape = SlotShape(ROLLOUT, ROWS, spec, 0, EXTRAS, True, LEASES)
        count = capacity + LEASES
        self.leaf, self.noise = leaf, noise
        self.slots = TrajectorySlots(count, shape, debug=True)
        self.frames = CompressedFrames(shape, [count], [ring_bytes(shape, capacity, ratio)])
        self.store = FrameStore(0, self.frames, self.slots, range(LEASES))
        self.replay_counters = ReplayCounters(1)
        priority = Prioritisation(0.6, 1e-6)
        self.shard = ReplayShard(
            0, self.slots, 0, count, capacity, priority, self.replay_counters, [0], self.store
        )
        self.reader = TransitionReader(self.slots, self.frames)
        self.random = np.random.default_rng(0)
        self.naive: dict[int, np.ndarray[Any, Any]] = {}  # slot -> [T+1, rows, k, ...]
        self.leased = deque_of(self.shard, LEASES)

    def insert(self) -> int:
        """One rollout of frames whose pixels take ``noise`` values, through the life of a slot."""
        slots, leaf = self.slots, self.leaf
        slot = self.leased.pop(0)
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
        self.shard.insert(slot)
        self.leased += deque_of(self.shard, 1)
        return slot

    def check(self, drawn: Any) -> int:
        """Compare what is read with the naive copies; returns how many there were."""
        found, still_valid = self.reader.read(*drawn)
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

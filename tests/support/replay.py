"""A replay whose rollouts a test makes."""

from __future__ import annotations

import numpy as np

from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.shard import Prioritisation, ReplayShard, ShardMemory, ShardSlots
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec

ROLLOUT, ROWS = 5, 3
STEPS = ROLLOUT * ROWS
SPEC = EnvSpec(
    "fake",
    {"obs": ArraySpec((2,), "float32")},
    {"action": ActionSpec("discrete", (), "int64", (4,))},
)


class Replay:
    """Shards over slots, with the test in the place of actors and learner."""

    def __init__(
        self,
        capacity: int = 7,
        alpha: float = 0.6,
        shards: int = 1,
        seed: int = 0,
        leases: int = 2,
        *,
        estimated: bool = True,
    ) -> None:
        shape = SlotShape(ROLLOUT, ROWS, SPEC, 0, {}, finished=ITEM_COLUMNS)
        self.capacity, self.each = capacity, capacity + leases
        self.slots = TrajectorySlots(shards * self.each, shape, debug=True)
        self.replay_counters = ReplayCounters(shards)
        self.priority = Prioritisation(alpha, 1e-6, estimated)
        self.memories = [
            ShardMemory(self.each, STEPS, prioritised=alpha > 0) for _ in range(shards)
        ]
        self.shards = [self.new_shard(i, [seed, i]) for i in range(shards)]
        self.random = np.random.default_rng(seed)
        self.lives = 0

    def new_shard(self, i: int, seed: list[int]) -> ReplayShard:
        """The ``i``-th shard, as its process makes it."""
        own = ShardSlots(i, i * self.each, self.each, self.capacity)
        memory, counters = self.memories[i], self.replay_counters
        return ReplayShard(own, self.slots, memory, self.priority, counters, seed)

    def insert(self, shard: int = 0, errors: np.ndarray | None = None) -> int:
        """One rollout through the life of a slot; its observations are [life, t * rows + row]."""
        slot = self.shards[shard].lease()
        assert slot is not None
        slots, self.lives = self.slots, self.lives + 1
        slots.move(slot, Owner.FREE, Owner.WRITING)
        slots.obs["obs"][slot, ..., 0] = self.lives
        slots.obs["obs"][slot, ..., 1] = np.arange((ROLLOUT + 1) * ROWS).reshape(-1, ROWS)
        slots.actions["action"][slot] = self.lives % 4
        left = ROLLOUT - np.arange(ROLLOUT)[:, None]
        slots.extras["steps"][slot] = np.minimum(left, self.random.integers(0, 4, (ROLLOUT, ROWS)))
        slots.extras["returns"][slot] = self.lives
        slots.extras["discount"][slot] = 0.5
        if errors is None:
            errors = self.random.gamma(0.5, size=(ROLLOUT, ROWS))
        slots.extras["td_error"][slot] = errors
        slots.move(slot, Owner.WRITING, Owner.READY)
        self.shards[shard].insert(slot)
        return slot

    def expected(self) -> np.ndarray:
        """Probability of every item of every slot, by the definition."""
        priority_sum = np.zeros(self.slots.count * STEPS)
        for shard in self.shards:
            for slot in shard.stored_slots:
                errors = self.slots.extras["td_error"][slot].reshape(-1).astype(np.float64)
                usable = self.slots.extras["steps"][slot].reshape(-1) > 0
                priorities = np.where(usable, (errors + 1e-6) ** self.priority.alpha, 0)
                priority_sum[slot * STEPS : (slot + 1) * STEPS] = priorities
        return priority_sum / priority_sum.sum()

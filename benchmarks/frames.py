"""Memory and time of the replay of an Atari game, measured alone in one process.

Rollouts of a random player are written into slots, as actors do it, until the replay is full. Then
follow rounds: draw a batch by priority, copy its transitions, set new priorities.
All rates are per second of processor time, with one thread.

    stacks  whole stacks of 4 frames, as APPO's slots hold them
    frames  single frames, stacks rebuilt at the gather
    lz4     single frames, compressed at insertion

    taskset -c 0 python benchmarks/frames.py --capacity 2000000 --how frames lz4
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from machine import describe, table

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.vector import StepOut
from sampleforge.replay.compressed import CompressedFrames, FrameStore, ring_bytes
from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.shard import Prioritisation, ReplayShard
from sampleforge.replay.shard_memory import ShardMemory, ShardSlots
from sampleforge.replay.transitions import TransitionReader
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.spec import EnvSpec

LEASES, BATCH, PLAYED = 4, 512, 1000
Array = np.ndarray[Any, Any]


class Played(NamedTuple):
    """Steps of a random player, all rows: stacks [PLAYED, rows, 4, 84, 84], and where episodes
    begin."""

    spec: EnvSpec
    stacks: Array
    first: Array


def play(env_id: str, rows: int) -> Played:
    vector = make_vector(EnvConfig(env=env_id), rows, list(range(rows)))
    leaf, rng = vector.spec.observations["obs"], np.random.default_rng(0)
    stacks = np.empty((PLAYED, rows, *leaf.shape), leaf.dtype)
    first = np.ones((PLAYED, rows), np.bool_)
    reward = np.empty(rows, np.float32)
    terminated, truncated, valid = (np.empty(rows, np.bool_) for _ in range(3))
    vector.reset({"obs": stacks[0]})
    actions = vector.spec.actions["action"].categories[0]
    for t in range(1, PLAYED):
        vector.send({"action": rng.integers(0, actions, rows)})
        vector.recv(StepOut(reward, terminated, truncated, valid, {"obs": stacks[t]}, first[t]))
    vector.close()
    return Played(vector.spec, stacks, first)


class Replay:
    """A shard of ``capacity`` slots, in one of three ways."""

    def __init__(self, how: str, spec: EnvSpec, capacity: int, size: tuple[int, int]) -> None:
        buffers = LEASES if how == "lz4" else None
        shape = SlotShape(*size, spec, 0, {}, how != "stacks", buffers, finished=ITEM_COLUMNS)
        count = capacity + LEASES
        self.announced, frames, store = (
            shape.nbytes(count) + count * shape.env_steps * 8,
            None,
            None,
        )
        self.slots = TrajectorySlots(count, shape)
        if how == "lz4":
            ring = ring_bytes(shape, capacity, 10.0)
            frames = CompressedFrames(shape, [count], [ring])
            store = FrameStore(0, frames, self.slots, range(LEASES))
            self.announced += frames.nbytes(shape, count, ring)
        self.replay_counters = ReplayCounters(1)
        priority = Prioritisation(0.6, 1e-6)
        memory = ShardMemory(count, shape.items, prioritised=True)
        own = ShardSlots(0, 0, count, capacity)
        self.shard = ReplayShard(
            own, self.slots, memory, priority, self.replay_counters, [0], store
        )
        self.reader = TransitionReader(self.slots, frames)
        self.random = np.random.default_rng(0)
        self.leased = deque(self.shard.lease() for _ in range(LEASES))
        self.write_s = self.insert_s = 0.0
        self.inserts = 0

    def insert(self, played: Played) -> None:
        """One rollout: what an actor writes, and what the shard does with it."""
        slots, slot = self.slots, self.leased.popleft()
        assert slot is not None
        rollout = slots.shape.rollout
        begin = int(self.random.integers(0, PLAYED - rollout))
        begun = time.process_time()
        for t in range(rollout + 1):
            seen = played.stacks[begin + t]
            for leaf in slots.obs.values():
                leaf[slot, t] = seen
            for stacks in slots.stacks.values():
                (stacks.put(slot, t, seen) if t else stacks.begin(slot, seen))
        slots.first[slot] = played.first[begin : begin + rollout + 1]
        slots.extras["steps"][slot] = np.minimum(3, rollout - np.arange(rollout))[:, None]
        slots.extras["td_error"][slot] = self.random.random((rollout, slots.shape.rows))
        slots.owner[slot] = Owner.READY
        written = time.process_time()
        self.shard.insert(slot)
        self.leased.append(self.shard.lease())
        self.insert_s += time.process_time() - written
        self.write_s += written - begun
        self.inserts += slots.shape.env_steps

    def rounds(self, seconds: float) -> float:
        """Return the rounds of draw, gather and update per second."""
        errors = self.random.random(BATCH).astype(np.float32)
        count, begun = 0, time.process_time()
        while time.process_time() - begun < seconds:
            drawn = self.shard.draw(BATCH)
            _, still_valid = self.reader.read(*drawn)
            assert still_valid.all()
            self.shard.update(drawn.items, drawn.generations, errors)
            count += 1
        return count / (time.process_time() - begun)


def memory() -> Array:
    """Return the bytes of shared memory that are in use on the machine, and the resident bytes of
    this process, shared or not."""
    gc.collect()
    return np.array([psutil.virtual_memory().shared, psutil.Process().memory_info().rss])


def measured(how: str, played: Played, args: argparse.Namespace) -> list[str]:
    """Measure one way; return its line of the table."""
    before = memory()
    steps = args.rollout * args.rows
    replay = Replay(how, played.spec, args.capacity // steps, (args.rollout, args.rows))
    while not replay.replay_counters.full[0]:
        replay.insert(played)
    reserved, taken = memory() - before
    held = int(replay.replay_counters.stored[0])
    frames = replay.slots.shape.rollout + 4
    raw = len(replay.shard.stored_slots) * frames * args.rows * 84 * 84
    packed = replay.replay_counters.frame_bytes[0]
    return [
        how,
        f"{held:,}",
        f"{replay.announced / 1e9:.2f}",
        f"{reserved / 1e9:.2f}",
        f"{taken / 1e9:.2f}",
        f"{raw / packed:.1f}" if packed else "",
        f"{replay.inserts / replay.write_s:,.0f}",
        f"{replay.inserts / replay.insert_s:,.0f}",
        f"{replay.rounds(args.seconds) * BATCH:,.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--capacity", type=int, default=50_000)
    parser.add_argument("--rollout", type=int, default=100)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--how", nargs="+", default=["stacks", "frames", "lz4"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    played = play(args.env, args.rows)
    rows = [measured(how, played, args) for how in args.how]
    print(describe("numpy", "torch", "lz4", "ale-py"))
    header = (
        "kept as,transitions,announced GB,reserved GB,used GB,ratio,written/s,inserted/s,sampled/s"
    )
    print(table(header.split(","), rows))


if __name__ == "__main__":
    main()

"""The replay alone, in one process: rounds of draw, gather and update, and insertion, by its size.

A round draws a batch by priority, copies its transitions (observation, action, return, discount,
next observation) out of the slots, and gives the batch new priorities. Beside it, where cpprb is
installed (pip install cpprb), the same rounds of its C++ PrioritizedReplayBuffer.

    taskset -c 0 python benchmarks/replay.py
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

import numpy as np
from machine import describe, table

from sampleforge.data.replay import EXTRAS, Prioritisation, ReplayShard
from sampleforge.data.replay_ledger import ReplayLedger
from sampleforge.data.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.data.transitions import TransitionReader
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec

ROLLOUT, ROWS, OBS = 50, 20, 4
SPEC = EnvSpec(
    "none",
    {"obs": ArraySpec((OBS,), "float32")},
    {"action": ActionSpec("discrete", (), "int64", (2,))},
)


def filled(items: int) -> tuple[ReplayShard, TransitionReader, float]:
    """A shard of ``items`` transitions, a reader of its slots, and its insertions per second."""
    capacity = items // (ROLLOUT * ROWS)
    slots = TrajectorySlots(capacity + 1, SlotShape(ROLLOUT, ROWS, SPEC, 0, EXTRAS))
    priority, ledger = Prioritisation(0.6, 1e-6), ReplayLedger(1)
    shard = ReplayShard(0, slots, 0, capacity + 1, capacity, priority, ledger, [0])
    random, spent = np.random.default_rng(0), 0.0
    for _ in range(capacity + 20):
        slot = shard.lease()
        assert slot is not None
        slots.extras["steps"][slot] = 1
        slots.extras["td_error"][slot] = random.random((ROLLOUT, ROWS))
        slots.owner[slot] = Owner.READY
        begun = time.perf_counter()
        shard.insert(slot)
        spent += time.perf_counter() - begun
    return shard, TransitionReader(slots), (capacity + 20) * ROLLOUT * ROWS / spent


def ours(items: int, batch: int) -> tuple[Callable[[], None], float]:
    shard, reader, inserts = filled(items)
    errors = np.random.default_rng(1).random(batch).astype(np.float32)

    def one_round() -> None:
        drawn = shard.draw(batch)
        reader.read(*drawn)
        shard.update(drawn.items, drawn.generations, errors)

    return one_round, inserts


def of_cpprb(items: int, batch: int) -> Callable[[], None]:
    from cpprb import PrioritizedReplayBuffer

    wide = {"shape": OBS, "dtype": np.float32}
    fields = {"obs": wide, "next_obs": wide, "act": {"dtype": np.int64}}
    fields |= {"rew": {"dtype": np.float32}, "done": {"dtype": np.float32}}
    buffer = PrioritizedReplayBuffer(items, fields, alpha=0.6)
    random, block = np.random.default_rng(0), 10_000
    for _ in range(items // block):
        seen = random.random((block, OBS), np.float32)
        zeros = np.zeros(block, np.float32)
        steps = {"obs": seen, "next_obs": seen, "act": zeros, "rew": zeros, "done": zeros}
        buffer.add(**steps, priorities=random.random(block))
    errors = random.random(batch)

    def one_round() -> None:
        drawn = buffer.sample(batch, 0.4)
        buffer.update_priorities(drawn["indexes"], errors)

    return one_round


def rate(one_round: Callable[[], None], seconds: float) -> float:
    """Rounds per second, after a short warm-up."""
    for _ in range(20):
        one_round()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        one_round()
        count += 1
    return count / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    args = parser.parse_args()
    with_cpprb = importlib.util.find_spec("cpprb") is not None
    rows = []
    for items in args.sizes:
        one_round, inserts = ours(items, args.batch)
        row = [f"{items:,}", f"{rate(one_round, args.seconds):,.0f}", f"{inserts / 1e6:.1f}"]
        if with_cpprb:
            row.append(f"{rate(of_cpprb(items, args.batch), args.seconds):,.0f}")
        rows.append(row)
    print(describe("numpy", "torch", "cpprb"))
    header = [
        "transitions",
        "rounds per s",
        "inserts, M/s",
        *(["cpprb, rounds per s"] * with_cpprb),
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()

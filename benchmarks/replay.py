"""The replay alone, in one process: rounds of draw, gather and update, by its size.

A round draws a batch by priority, copies its transitions (observation, action, return, discount,
next observation) out of the slots, and gives the batch new priorities. Beside it, where cpprb is
installed (pip install cpprb), the same rounds of its C++ PrioritizedReplayBuffer.

    taskset -c 0 python benchmarks/replay.py --repeat 3
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from machine import describe, table

from sampleforge.replay.items import ITEM_COLUMNS
from sampleforge.replay.limiter import ReplayCounters
from sampleforge.replay.samples import TransitionReader
from sampleforge.replay.shard import Prioritisation, ReplayShard, ShardMemory, ShardSlots
from sampleforge.rollouts.slots import Owner, SlotShape, TrajectorySlots
from sampleforge.spec import ActionSpec, ArraySpec, EnvSpec

ROLLOUT, ROWS, OBS = 50, 20, 4
SPEC = EnvSpec(
    "none",
    {"obs": ArraySpec((OBS,), "float32")},
    {"action": ActionSpec("discrete", (), "int64", (2,))},
)


def filled(items: int) -> tuple[ReplayShard, TransitionReader]:
    """A shard of ``items`` transitions, and a reader of its slots."""
    capacity = items // (ROLLOUT * ROWS)
    shape = SlotShape(ROLLOUT, ROWS, SPEC, 0, {}, finished=ITEM_COLUMNS)
    slots = TrajectorySlots(capacity + 1, shape)
    priority, replay_counters = Prioritisation(0.6, 1e-6), ReplayCounters(1)
    memory = ShardMemory(capacity + 1, slots.shape.items, prioritised=True)
    own = ShardSlots(0, 0, capacity + 1, capacity)
    shard = ReplayShard(own, slots, memory, priority, replay_counters, [0])
    random = np.random.default_rng(0)
    for _ in range(capacity + 20):
        slot = shard.lease()
        assert slot is not None
        slots.extras["steps"][slot] = 1
        slots.extras["td_error"][slot] = random.random((ROLLOUT, ROWS))
        slots.owner[slot] = Owner.READY
        shard.insert(slot)
    return shard, TransitionReader(slots)


def ours(items: int, batch: int) -> Callable[[], None]:
    shard, reader = filled(items)
    errors = np.random.default_rng(1).random(batch).astype(np.float32)

    def one_round() -> None:
        drawn = shard.draw(batch)
        reader.read(*drawn)
        shard.update(drawn.items, drawn.generations, errors)

    return one_round


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
    """Rounds per second of processor time, after a short warm-up; both sides have one thread."""
    for _ in range(20):
        one_round()
    count, begun = 0, time.thread_time()
    while time.thread_time() - begun < seconds:
        one_round()
        count += 1
    return count / (time.thread_time() - begun)


def pairs_of(items: int, batch: int, seconds: float, repeat: int) -> dict[str, list[float]]:
    """Rounds per second of processor time of each, measured in turns."""
    sides = {"SampleForge": ours(items, batch)}
    if importlib.util.find_spec("cpprb") is not None:
        sides["cpprb"] = of_cpprb(items, batch)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeat):
        for name, one_round in sides.items():
            found[name].append(rate(one_round, seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=1, help="measurements, of which the median")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    us: dict[str, list[float]] = {}
    for items in args.sizes:
        found = pairs_of(items, args.batch, args.seconds, args.repeat)
        for name, rates in found.items():
            us.setdefault(name, []).append(1e6 / median(rates))
        row = [f"{items:,}", *(f"{median(rates):,.0f}" for rates in found.values())]
        if "cpprb" in found:
            ratios = [a / b for a, b in zip(*found.values(), strict=True)]
            row.append(f"{median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f})")
        rows.append(row)
    print(describe("numpy", "torch", "cpprb"))
    header = ["transitions", *(f"{name}, rounds per s" for name in us), *["ratio"][: len(us) - 1]]
    print(table(header, rows))


if __name__ == "__main__":
    main()

"""The cost of writing an env step into a slot, and of copying it from there into a batch.

A step of all rows of a split is written as env vectors do it, one write per column, out of arrays
as simulators give them; a full slot is copied as learners do it. Beside both, the floor: one plain
copy of as many bytes, in one piece.

    taskset -c 0 python benchmarks/slot_writes.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from cases import CASES, chosen, filled_slots, prepared, seconds_of
from machine import describe, table

from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.rollouts.slots import TrajectorySlots

ROWS = (1, 8, 32, 128)


def measure(case: str, rows: int, seconds: float) -> list[str]:
    """Nanoseconds per env step: write and its floor, copy and its floor."""
    config, spec = prepared(case)
    slots = filled_slots(config, spec, rows, 8)
    rollout, where = slots.shape.rollout, steps_in_turn(slots)
    targets = [*slots.obs.values(), slots.reward, slots.terminated, slots.truncated]
    targets += [slots.valid, slots.first]
    given = [column[0, 0].copy() for column in targets]

    def write() -> None:
        slot, t = next(where)
        for column, values in zip(targets, given, strict=True):
            column[slot, t] = values

    builder = BatchBuilder(slots, slots.count)

    def gather() -> None:
        for slot in range(slots.count):
            builder.add(slot)
        builder.take()

    step_bytes = sum(values.nbytes for values in given)
    slot_bytes = sum(column[0].nbytes for column in slots.columns().values())
    steps = slots.count * slots.shape.env_steps
    figures = [
        seconds_of(write, seconds) / rows,
        plain_copy(step_bytes, slots.count * rollout, seconds) / rows,
        seconds_of(gather, seconds) / steps,
        plain_copy(slot_bytes, slots.count, seconds) * slots.count / steps,
    ]
    return [case, str(rows), f"{step_bytes / rows:,.0f}", *(f"{f * 1e9:,.0f}" for f in figures)]


def steps_in_turn(slots: TrajectorySlots) -> Iterator[tuple[int, int]]:
    """(slot, t) in the order in which a slot after the other is filled."""
    while True:
        for slot in range(slots.count):
            for t in range(slots.shape.rollout):
                yield slot, t


def plain_copy(size: int, places: int, seconds: float) -> float:
    """Seconds of a copy of ``size`` bytes to the next of as many places as the slots have."""
    source = torch.from_numpy(np.ones(size, np.uint8))
    target = torch.zeros((places, size), dtype=torch.uint8)
    at = 0

    def copy() -> None:
        nonlocal at
        target[at].copy_(source)
        at = (at + 1) % places

    return seconds_of(copy, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure, after a warm-up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe("numpy", "torch"), end="\n\n")
    found = [
        measure(case, rows, args.seconds) for case in chosen(parser, args.cases) for rows in ROWS
    ]
    header = ["ns per env step", "rows", "bytes", "write", "plain copy", "to batch", "plain copy"]
    print(table(header, found))


if __name__ == "__main__":
    main()

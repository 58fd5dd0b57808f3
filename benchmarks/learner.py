"""The cost of learning from an env step: a learner's whole update, and the network's passes in it.

The update turns a batch into experience, computes V-trace or GAE, the loss and all its metrics,
clips, steps the optimiser and updates the normalisers. The floor is one forward and one backward
pass of the same network over as many observations. Then what it costs to publish the weights, and
to take them up. Batches as --async-rl makes them, one epoch.

    taskset -c 0 python benchmarks/learner.py --precision fp32 bf16
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Literal

import torch
from cases import CASES, chosen, filled_slots, prepared, seconds_of
from machine import describe, table

from sampleforge.algorithms.precision import autocast
from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.topologies.builders import ResumePoint, initial_weights, make_learner
from tests.support.pairings import network_maker, plan_of

Precision = Literal["fp32", "bf16"]


def measure(case: str, precision: Precision, device: str, seconds: float) -> list[str]:
    """Return microseconds per env step of the update and of the network's passes, and microseconds
    of one publication."""
    config, spec = prepared(case)
    plan = plan_of(replace(config, precision=precision), spec, device)
    slots, where = filled_slots(config, spec, plan.rows, plan.slots_per_batch), torch.device(device)
    builder = BatchBuilder(slots, plan.slots_per_batch, where)
    for slot in range(plan.slots_per_batch):
        builder.add(slot)
    batch, start = builder.take(), ResumePoint(0)
    new_model = network_maker(config, spec, 0)
    learner = make_learner(new_model, plan, start)

    def learn() -> None:
        batch.version.fill_(learner.version)  # else all steps become stale
        learner.update(batch, 0.0)

    model = new_model().to(where)
    obs = {name: leaf[:-1].clone() for name, leaf in batch.obs.items()}

    def passes() -> None:
        model.zero_grad(set_to_none=True)
        with autocast(where, precision):
            output = model(obs, batch.state, batch.is_first[:-1])
            scalar = output.values.sum() + output.parameters.sum()
        scalar.backward()

    weights = initial_weights(new_model, start)
    state, into = learner.model.state_dict(), new_model().state_dict()
    figures = [
        seconds_of(learn, seconds, where),
        seconds_of(passes, seconds, where),
    ]
    update, floor = (figure / plan.batch_size * 1e6 for figure in figures)
    moved = seconds_of(lambda: weights.publish(state, 0), seconds / 5, where)
    moved += seconds_of(lambda: weights.read(into), seconds / 5, where)
    shown = [f"{update:,.2f}", f"{floor:,.2f}", f"{floor / update:.0%}", f"{moved * 1e6:,.0f}"]
    return [case, precision, f"{plan.batch_size:,}", *shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure, after a warm-up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe("torch"), end="\n\n")
    found = [
        measure(case, precision, args.device, args.seconds)
        for case in chosen(parser, args.cases)
        for precision in args.precision
    ]
    header = ["us per env step", "precision", "batch", "update", "passes", "share", "weights, us"]
    print(table(header, found))


if __name__ == "__main__":
    main()

"""The cost of computing an action: an actor's whole call, and the network's forward pass in it.

The call reads observations out of a slot, looks for newer weights, runs the network, samples, and
writes actions, log-probabilities and values back. The floor is the network's forward pass alone, on
a tensor that is there already. Per env step, over the rows that go through it together.

    taskset -c 0 python benchmarks/inference.py --precision fp32 bf16
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from cases import CASES, chosen, filled_slots, prepared, seconds_of
from machine import describe, table

from sampleforge.algos.policy import autocast
from sampleforge.topologies.builders import ResumePoint, initial_weights, make_policy, model_maker
from sampleforge.workers.inference import InlineInference

ROWS = (1, 8, 32, 128, 512)


def measure(case: str, rows: int, precision: str, device: str, seconds: float) -> list[str]:
    """Return microseconds per env step of the call and of the forward pass, and the latter's
    share."""
    config, spec = prepared(case)
    slots, where = filled_slots(config, spec, rows, 1), torch.device(device)
    new_model = model_maker(config, spec, 0)
    weights = initial_weights(new_model, ResumePoint(0))
    make = partial(make_policy, new_model, weights, device, precision, 0)
    model = new_model().to(where).eval()
    obs = {name: torch.from_numpy(leaf[0, 0]).to(where) for name, leaf in slots.obs.items()}
    state = torch.zeros((rows, slots.shape.state_size), device=where)
    first = torch.zeros(rows, dtype=torch.bool, device=where)

    @torch.inference_mode()
    def forward() -> None:
        with autocast(where, precision):
            model.step(obs, state, first)

    network = seconds_of(forward, seconds, where) / rows
    shown = [case, precision, str(rows)]
    if where.type != "cpu":  # policy workers have a call of their own for a GPU
        return [*shown, "", f"{network * 1e6:,.2f}", ""]
    inference = InlineInference(make, slots, 1, 0)
    inference.start()
    call = seconds_of(lambda: inference.ask(0, 0, 0), seconds) / rows
    return [*shown, f"{call * 1e6:,.2f}", f"{network * 1e6:,.2f}", f"{network / call:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure, after a warm-up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe("torch"), end="\n\n")
    found = [
        measure(case, rows, precision, args.device, args.seconds)
        for case in chosen(parser, args.cases)
        for precision in args.precision
        for rows in args.rows
    ]
    print(table(["us per env step", "precision", "rows", "call", "network", "share"], found))


if __name__ == "__main__":
    main()

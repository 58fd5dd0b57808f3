"""The cost of computing an action: an actor's whole call, and the network's forward pass in it.

The call reads observations out of a slot, looks for newer weights, runs the network, samples, and
writes actions, log-probabilities and values back; beside it the same call with every operation in
torch. The floor is the network's forward pass alone, on an array that is there already: in torch,
and in numpy (`models.mlp_pass`), if the network has that pass. Per env step, over the rows that go
through it together. The ways take turns, and each figure is the lowest of several rounds.

    taskset -c 0 python benchmarks/inference.py --precision fp32 bf16
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from cases import CASES, chosen, filled_slots, prepared, seconds_of
from machine import describe, table

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.precision import autocast
from sampleforge.algorithms.sampling import Stochastic, actor_critic_columns, sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.mlp_pass import MlpPass, has_pass
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.threads import limit_threads
from sampleforge.shared.weights import SharedWeights
from sampleforge.topologies.builders import ResumePoint, initial_weights
from sampleforge.workers.inference import LocalInference
from tests.support.pairings import network_maker

ROWS = (1, 8, 32, 64, 128, 512)
ROUNDS = 5
WAYS = ("call", "call in torch", "network in torch", "network in numpy")


def in_torch(network: ActorCritic, weights: SharedWeights, place: ActingPlace) -> Acting:
    """Return what acts with every operation in torch."""
    return Acting(network, weights, place, Stochastic(place.generator), actor_critic_columns)


def asking(make: Callable[[], Acting], slots: TrajectorySlots) -> Callable[[], None]:
    """Return the call with which an actor asks for actions."""
    inference = LocalInference(make, slots, 1, 0)
    inference.start()
    return partial(inference.ask, 0, 0, 0)


def measure(case: str, rows: int, precision: str, device: str, seconds: float) -> list[str]:
    """Return microseconds per env step of each of `WAYS`."""
    config, spec = prepared(case)
    slots, where = filled_slots(config, spec, rows, 1), torch.device(device)
    new_model = network_maker(config, spec, 0)
    weights = initial_weights(new_model, ResumePoint(0))
    model = new_model().to(where).eval()
    obs = {name: torch.from_numpy(leaf[0, 0]).to(where) for name, leaf in slots.obs.items()}
    state = torch.zeros((rows, slots.shape.state_size), device=where)
    first = torch.zeros(rows, dtype=torch.bool, device=where)

    @torch.inference_mode()
    def forward() -> None:
        with autocast(where, precision):
            model.step(obs, state, first)

    ways: dict[str, Callable[[], object]] = {"network in torch": forward}
    if where.type == "cpu":  # policy workers have a call of their own for a GPU
        for name, new_acting in {"call": sampling, "call in torch": in_torch}.items():
            place = ActingPlace(torch.Generator().manual_seed(0), precision=precision)
            ways[name] = asking(partial(new_acting, new_model(), weights, place), slots)
        if has_pass(model) and precision == "fp32":
            arrays = {name: leaf[0, 0] for name, leaf in slots.obs.items()}
            ways["network in numpy"] = partial(MlpPass(model), arrays)
    lowest = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            lowest[name] = min(lowest[name], seconds_of(way, seconds / ROUNDS, where) / rows)
    shown = [f"{lowest[name] * 1e6:,.2f}" if name in lowest else "" for name in WAYS]
    return [case, precision, str(rows), *shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure, after a warm-up")
    args = parser.parse_args()
    limit_threads(1)  # as in a worker: torch and BLAS
    print(describe("torch"), end="\n\n")
    found = [
        measure(case, rows, precision, args.device, args.seconds)
        for case in chosen(parser, args.cases)
        for precision in args.precision
        for rows in args.rows
    ]
    print(table(["us per env step", "precision", "rows", *WAYS], found))


if __name__ == "__main__":
    main()

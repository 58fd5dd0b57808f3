"""The cost of computing an action, and of learning from an env step, each beside its floor; and of
averaging gradients over ranks.

    PYTHONPATH=. taskset -c 0 python benchmarks/micro.py act --precision fp32 bf16
    PYTHONPATH=. taskset -c 0 python benchmarks/micro.py learn --precision fp32 bf16 --seconds 3
    PYTHONPATH=. python benchmarks/micro.py average --ranks 4 8 16 32

``act``: an actor's whole call, which reads observations out of a slot, looks for newer weights,
runs the network, samples, and writes actions, log-probabilities and values back; beside it the same
call with every operation in torch. The floor is the network's forward pass alone, on an array that
is there already: in torch, and in numpy (`models.numpy_forward`), if the network has that pass. Per
env step, over the rows that go through it together. The ways take turns, and each figure is the
lowest of several rounds.

``learn``: a learner's whole update, which turns a batch into experience, computes V-trace or GAE,
the loss and all its metrics, clips, steps the optimiser and updates the normalisers. The floor is
one forward and one backward pass of the same network over as many observations. Then what it costs
to publish the weights, and to take them up. Batches as --async-rl makes them, one epoch.

``average``: the gradients of an update summed over ranks, each a process, through shared memory:
what one rank reads of it, and its processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Literal

import torch
from cases import CASES, chosen, filled_slots, prepared, seconds_of
from machine import describe, table

from sampleforge.algorithms.acting import Acting, ActingPlace
from sampleforge.algorithms.sampling import Stochastic, actor_critic_columns, sampling
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.forward import autocast
from sampleforge.models.numpy_forward import NumpyForward, has_numpy_forward
from sampleforge.peers.shm_group import MemoryRendezvous, RankMemory
from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.rollouts.slots import TrajectorySlots
from sampleforge.runtime.torch_settings import limit_threads
from sampleforge.shared.newest import SharedWeights
from sampleforge.topologies.builders import initial_weights
from sampleforge.topologies.learner_maker import make_learner
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.inference import LocalInference
from tests.support.pairings import network_maker, plan_of
from tests.support.rank_threads import BytesRead

ROWS = (1, 8, 32, 64, 128, 512)
ROUNDS = 5
Precision = Literal["fp32", "bf16"]
WAYS = ("call", "call in torch", "network in torch", "network in numpy")


def in_torch(network: ActorCritic, weights: SharedWeights, place: ActingPlace) -> Acting:
    """Return what acts with every operation in torch."""
    return Acting(network, weights, place, Stochastic(place.generator), actor_critic_columns)


def asking(make: Callable[[], Acting], slots: TrajectorySlots) -> Callable[[], None]:
    """Return the call with which an actor asks for actions."""
    inference = LocalInference(make, slots, 1, 0)
    inference.start()
    return partial(inference.ask, 0, 0, 0)


def acting(case: str, rows: int, precision: Precision, device: str, seconds: float) -> list[str]:
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
        if has_numpy_forward(model) and precision == "fp32":
            arrays = {name: leaf[0, 0] for name, leaf in slots.obs.items()}
            ways["network in numpy"] = partial(NumpyForward(model), arrays)
    lowest = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            lowest[name] = min(lowest[name], seconds_of(way, seconds / ROUNDS, where) / rows)
    shown = [f"{lowest[name] * 1e6:,.2f}" if name in lowest else "" for name in WAYS]
    return [case, precision, str(rows), *shown]


def learning(case: str, precision: Precision, device: str, seconds: float) -> list[str]:
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
    figures = [seconds_of(work, seconds, where) for work in (learn, passes)]
    update, floor = (figure / plan.batch_size * 1e6 for figure in figures)
    moved = seconds_of(lambda: weights.publish(state, 0), seconds / 5, where)
    moved += seconds_of(lambda: weights.read(into), seconds / 5, where)
    shown = [f"{update:,.2f}", f"{floor:,.2f}", f"{floor / update:.0%}", f"{moved * 1e6:,.0f}"]
    return [case, precision, f"{plan.batch_size:,}", *shown]


GRADIENTS = {"CartPole": 20_000, "MinAtar": 600_000, "Nature CNN": 6_700_000}
"""Bytes of a gradient."""


def averaging(rendezvous: MemoryRendezvous, nbytes: int, rounds: int, pipe: Connection) -> None:
    """As a rank: send the bytes read and the seconds of processor time of a step, and its
    seconds."""
    torch.set_num_threads(1)
    group, gradient = rendezvous.join(0), torch.ones(nbytes // 4)
    with BytesRead() as read:
        group.all_reduce(gradient)()
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        group.all_reduce(gradient.fill_(1.0))()
    used, passed = time.process_time() - used, time.perf_counter() - begun
    group.all_gather(torch.zeros(1))
    pipe.send((read.count - gradient.nbytes, used / rounds, passed / rounds))
    group.close()


def average(ranks: int, nbytes: int, rounds: int) -> list[str]:
    """Return the MB that a rank reads of shared memory per step, and the milliseconds of processor
    time and of time that a step takes."""
    context, memory = multiprocessing.get_context("fork"), RankMemory(ranks, nbytes)
    pipes = []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        args = (memory.rendezvous(rank, 120, "cpu"), nbytes, rounds, theirs)
        context.Process(target=averaging, args=args, daemon=True).start()
        theirs.close()
        pipes.append(ours)
    read, used, passed = (sum(of) / ranks for of in zip(*(p.recv() for p in pipes), strict=True))
    return [f"{read / 1e6:.2f}", f"{used * 1e3:.2f}", f"{passed * 1e3:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["act", "learn", "average"])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="that act together")
    parser.add_argument("--ranks", nargs="+", type=int, default=(4, 8, 16, 32))
    parser.add_argument("--rounds", type=int, default=50, help="of averaging")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure, after a warm-up")
    args = parser.parse_args()
    limit_threads(1)  # as in a worker: torch and BLAS
    print(describe("torch"), end="\n\n")
    if args.what == "average":
        header = ["ranks", "MB read by a rank", "its processor time, ms", "ms per step"]
        rows = [
            [name, str(ranks), *average(ranks, nbytes, args.rounds)]
            for name, nbytes in GRADIENTS.items()
            for ranks in args.ranks
        ]
        print(table(["gradient", *header], rows))
        return
    pairs = [(case, p) for case in chosen(parser, args.cases) for p in args.precision]
    given = (args.device, args.seconds)
    if args.what == "act":
        header = ["rows", *WAYS]
        found = [acting(case, rows, p, *given) for case, p in pairs for rows in args.rows]
    else:
        header = ["batch", "update", "passes", "share", "weights, us"]
        found = [learning(case, p, *given) for case, p in pairs]
    print(table(["us per env step", "precision", *header], found))


if __name__ == "__main__":
    main()

"""The cost of keeping a learner's state in shared memory, from which its successor goes on.

Two learners of the same kind learn from the same batch in turn, one update each, so that a change
of the machine's speed meets both. One of them publishes its state as in a run, the other does not;
both publish their weights. A pair of figures is the processor time of all their updates, of about
``--seconds`` each; the clock by which publications are due stands still while the other one learns.

    taskset -c 0 python benchmarks/learner_state.py --pairs 15
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from cases import filled_slots, prepared
from machine import describe, table

from sampleforge.algos.averaging import Averaging
from sampleforge.distributed.group import join_solo
from sampleforge.distributed.group_epoch import GroupEpoch
from sampleforge.models.registry import resolve_encoder
from sampleforge.replay.transitions import Transitions
from sampleforge.rollouts.batch import BatchBuilder
from sampleforge.shared.counters import Counters, Progress
from sampleforge.shared.state_snapshot import StateSnapshot
from sampleforge.shared.training_clock import TrainingClock
from sampleforge.spec import EnvSpec
from sampleforge.topologies.apex import learners as apex_learners
from sampleforge.topologies.apex.plan import plan_apex
from sampleforge.topologies.apex.plan import resolve_defaults as resolve_apex
from sampleforge.topologies.apex.wire import network_maker
from sampleforge.topologies.appo.plan import plan_appo
from sampleforge.topologies.builders import ResumePoint, initial_weights, make_learner, model_maker
from sampleforge.topologies.config import ApexConfig
from sampleforge.topologies.graph import COUNTERS
from sampleforge.workers import group_member
from sampleforge.workers.group_member import GroupMember
from sampleforge.workers.rank_sync import Stateful
from sampleforge.workers.worker import StopFlag

CASES = {
    "appo cartpole": ("appo", "cartpole"),
    "appo breakout": ("appo", "breakout"),
    "apex breakout": ("apex", "breakout"),
}
T_95 = 2.145
"""Student's t of 14 degrees of freedom, for an interval of 95%: 15 pairs."""


@dataclass(frozen=True)
class Kind:
    """What is needed to make learners: each with its own state, and the batch that all learn from.
    ``update(learner)`` is one update."""

    new_model: Callable[[], torch.nn.Module]
    new_learner: Callable[[Averaging], Stateful]
    update: Callable[[Any], object]
    networks: int


def of_appo(case: str) -> Kind:
    config, spec = prepared(case)
    plan = plan_appo(config, spec, "cpu")
    slots = filled_slots(config, spec, plan.rows, plan.slots_per_batch)
    builder = BatchBuilder(slots, plan.slots_per_batch, torch.device("cpu"))
    for slot in range(plan.slots_per_batch):
        builder.add(slot)
    batch = builder.take()
    new_model = model_maker(config, spec, 0)

    def new_learner(averaging: Averaging) -> Stateful:
        return make_learner(new_model, config, plan, ResumePoint(0), averaging)

    def update(learner: Any) -> None:
        batch.version.fill_(learner.version)  # experience that is too old would be left out
        learner.update(batch, 0.0)

    return Kind(new_model, new_learner, update, 1)


def of_apex(case: str) -> Kind:
    appo, spec = prepared(case)
    config = resolve_apex(ApexConfig(env=appo.env, replay_capacity=10_000), spec)
    config = replace(config, model=resolve_encoder(config.model, spec.observations))
    plan = plan_apex(config, spec, "cpu")
    new_model = network_maker(config, spec, 0)
    batch = transitions(spec, plan.batch_size)

    def new_learner(averaging: Averaging) -> Stateful:
        start = ResumePoint(0)
        return apex_learners.make_learner(new_model, config, plan, start, "cpu", averaging)

    return Kind(new_model, new_learner, lambda learner: learner.update(batch, 0.4, 0.0), 2)


def transitions(spec: EnvSpec, count: int) -> Transitions:
    """Random transitions of single steps."""
    random = torch.Generator().manual_seed(0)

    def obs() -> dict[str, torch.Tensor]:
        return {
            name: torch.randint(0, 256, (count, *leaf.shape), generator=random).to(
                getattr(torch, leaf.dtype)
            )
            for name, leaf in spec.observations.items()
        }

    (action,) = spec.actions.values()
    assert action.categories is not None
    return Transitions(
        obs(),
        torch.randint(0, action.categories[0], (count,), generator=random),
        torch.rand(count, generator=random),
        torch.full((count,), 0.99),
        obs(),
        torch.ones(count, dtype=torch.float64),
        torch.rand(count, generator=random),
    )


class Clock:
    """Seconds of processor time, without those in which it stands still."""

    def __init__(self) -> None:
        self._left_out = 0.0
        self._stopped_at: float | None = time.process_time()

    def __call__(self) -> float:
        now = time.process_time() if self._stopped_at is None else self._stopped_at
        return now - self._left_out

    def go(self) -> None:
        assert self._stopped_at is not None
        self._left_out += time.process_time() - self._stopped_at
        self._stopped_at = None

    def stop(self) -> None:
        self._stopped_at = time.process_time()


class Side:
    """A learner and its membership of a group of one, with or without a snapshot. ``cpu_s``: of its
    updates so far."""

    def __init__(self, kind: Kind, snapshot: StateSnapshot | None) -> None:
        progress = Progress(Counters(COUNTERS, 1), TrainingClock())
        self._weights = initial_weights(kind.new_model, ResumePoint(0))
        self._member = GroupMember(
            0,
            0,
            join_solo,
            kind.new_learner,
            self._weights,
            progress,
            StopFlag(),
            GroupEpoch(0, 1),
            debug=False,
            snapshot=snapshot,
        )
        self._clock = Clock()
        self._update = kind.update
        self._snapshot = snapshot
        self.learner = self._member.start()
        self.cpu_s = 0.0
        self.updates = self.publications = 0

    def update(self) -> None:
        """Learn from the batch, as a learner worker does."""
        self._clock.go()
        with patch.object(group_member, "process_time", self._clock):
            begun = time.process_time()
            self._update(self.learner)
            self.updates += 1
            self._weights.publish(self.learner.model.state_dict(), self.learner.version)
            self._member.agree()
            self.cpu_s += time.process_time() - begun
        self._clock.stop()
        if self._snapshot is not None:
            self.publications += self._snapshot.version == self.learner.version
        assert self.learner.version == self.updates, "each update is a step"


def measure(name: str, pairs: int, seconds: float) -> list[str]:
    """Return the row of a case."""
    topology, case = CASES[name]
    kind = of_appo(case) if topology == "appo" else of_apex(case)
    snapshot = StateSnapshot(kind.new_model(), kind.networks)
    sides = [Side(kind, snapshot), Side(kind, None)]
    published, updates = sides[0], 0
    ratios = []
    while sides[1].cpu_s < 1.0 or published.publications < 2:  # a warm-up
        for side in sides:
            side.update()
    first = published.publications
    cpu_s = 0.0
    for _ in range(pairs):
        for side in sides:
            side.cpu_s = 0.0
        while sides[1].cpu_s < seconds:
            for side in sides if updates % 2 else reversed(sides):
                side.update()
            updates += 1
        ratios.append(sides[0].cpu_s / sides[1].cpu_s)
        cpu_s += sides[1].cpu_s
    mean = statistics.fmean(ratios)
    within = T_95 * statistics.stdev(ratios) / math.sqrt(pairs) if pairs == 15 else math.nan
    tensors, _ = published.learner.state()
    size = sum(tensor.nbytes for tensor in tensors.values())
    return [
        name,
        f"{size / 1e6:.2f}",
        f"{cpu_s / updates * 1e3:.1f}",
        f"{updates / (published.publications - first):.0f}",
        f"{mean:.4f}",
        f"{mean - within:.4f} to {mean + within:.4f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--pairs", type=int, default=15, help="with 15 there is an interval")
    parser.add_argument("--seconds", type=float, default=6.0, help="of processor time per figure")
    args = parser.parse_args()
    for name in args.cases:
        if name not in CASES:
            parser.error(f"no case {name!r}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    print(describe("torch"), end="\n\n")
    header = ["learner", "state, MB", "update, ms CPU", "updates per publication"]
    rows = [measure(name, args.pairs, args.seconds) for name in args.cases or CASES]
    print(table([*header, "with / without", "95% interval"], rows))


if __name__ == "__main__":
    main()

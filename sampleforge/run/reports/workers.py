"""The watch over the workers of a running training, which judges from their counters what each does
and what limits the run; and the states of the workers, as the terminal shows them and as
workers.json stores them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import psutil

from sampleforge.run.callback import Callback
from sampleforge.run.reports.system import NO_GPUS, Gpus, gpus_of
from sampleforge.run.reports.verdict import (
    Verdict,
    VerdictContext,
    counter_rows_of,
    gpu_load,
    stages,
    verdict,
)
from sampleforge.runtime.limits import cgroup_idle_s
from sampleforge.runtime.processes import available_cores, cores_to_pin, is_stopped
from sampleforge.topologies.graph import COUNTERS, Graph, Node, Role
from sampleforge.topologies.sampler_plan import SamplerPlan

if TYPE_CHECKING:
    from sampleforge.run.session import Session

State = Literal["starting", "running", "waiting", "stalled", "ended"]
"""starting: it has not worked yet; waiting: for other workers, most of its time; stalled: it has
counted nothing for seconds although it should have; ended: a rank that has left its loop."""


@dataclass(frozen=True)
class WorkerState:
    """What one worker does. ``seconds``: since it last counted anything; ``busy``: the fraction
    (0 to 1) of its time in which it did not wait, None if that is not known; ``rate``: per second,
    in ``unit``, None if its role has none or it is not known; ``pid``: None without a process of
    its own; ``detail``: what a starting worker has done so far."""

    name: str
    role: Role
    state: State
    seconds: float
    busy: float | None
    rate: float | None
    unit: str
    restarts: int
    pid: int | None
    detail: str = ""


@dataclass(frozen=True)
class RunState:
    """The states of all ``workers``, in the graph's order, and the last known ``verdict`` on what
    limits the run (None before the first)."""

    workers: tuple[WorkerState, ...]
    verdict: Verdict | None = None

    def to_plain(self, env_steps: int, wall_s: float) -> dict[str, Any]:
        """Return the contents of workers.json. ``time`` is in seconds since the epoch."""
        found = self.verdict
        limit = None
        if found is not None:
            limit = {
                "part": found.part,
                "stage": found.bottleneck,
                "in_words": found.in_words,
                "reason": found.reason,
                "flags": list(found.flags),
            }
        return {
            "time": time.time(),
            "env_steps": env_steps,
            "wall_s": wall_s,
            "limit": limit,
            "workers": [asdict(worker) for worker in self.workers],
        }


STALLED_S = 10.0
"""Seconds after which a silent worker counts as stalled."""
WAITING_BELOW = 0.5
"""Fraction of its time below which a worker that waits otherwise counts as waiting."""
STARTING_S = 1.0
"""Seconds between two looks at the workers before the first report."""
LEAST_S = 0.5
"""Shortest time between two judgements, in seconds: less says nothing."""
NOT_WORK = ("starting", "started_rows", "heartbeat", "silent_s", "restarts", "ended")
"""Counters that change although a worker has not worked yet."""
RATES: Mapping[Role, tuple[str, str]] = {
    "actor": ("env_steps", "env steps/s"),
    "rank": ("env_steps", "env steps/s"),
    "dataset": ("env_steps", "env steps/s"),
    "policy": ("rows", "actions/s"),
    "learner": ("trained_steps", "trained/s"),
    "evaluator": ("split_steps", "steps/s"),
}
"""Role -> the counter that its rate is of, and the rate's unit. A replay worker has no rate."""


class RunWatch(Callback):
    """Judges what every worker does and what limits the run, in the time since the last call of
    `look`, which takes about a millisecond. Writes it to workers.json: at each report, and every
    second before the first one; not in benchmark mode. Every session has one.

    ``context``: None for a run that only learns, which nothing but the learner can limit. ``gpus``:
    those of the run. ``state``: as it was judged last, without workers before that."""

    def __init__(self, graph: Graph, context: VerdictContext | None, gpus: Gpus = NO_GPUS) -> None:
        self._graph = graph
        self._gpus = gpus
        # Where experience is dropped, the learner only answers the driver and counts nothing.
        only_samples = context is not None and context.sampler_only
        self._nodes = [n for n in graph.nodes if not (only_samples and n.role == "learner")]
        self._context = context
        self._counter_rows = counter_rows_of(graph)
        self._work = [i for i, name in enumerate(COUNTERS) if name not in NOT_WORK]
        self._looked = monotonic()
        self._counted = self._began = self._count()
        """[counters, workers]: at the last call, and at the beginning of each worker's life."""
        self._idle = idle_s()
        self._changed = np.full(self._counted.shape[1], self._looked)
        self.state = RunState(())
        self._next = inf

    @classmethod
    def of(cls, session: Session) -> RunWatch:
        """Return the watch over the workers of a session that is wired."""
        plan, context = session.plan, None
        if isinstance(plan, SamplerPlan):
            context = VerdictContext.of(session.resolved, plan, session.spec, session.graph)
        gpus = Gpus(sorted(gpus_of(session.resolved, plan)))
        return cls(session.graph, context, gpus)

    def on_start(self, session: Session) -> None:
        self._look(session)
        self._next = monotonic() + STARTING_S

    def on_poll(self, session: Session) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + STARTING_S
            self._look(session)

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self._next = inf
        self._look(session)

    def on_stop(self, session: Session) -> None:
        self._write(session)

    def _look(self, session: Session) -> None:
        before = self.state
        if not session.config.benchmark and self.look(session.runner.pids()) is not before:
            self._write(session)

    def _write(self, session: Session) -> None:
        if session.config.benchmark:
            return
        session.folder.check_there()
        progress = session.graph.progress
        session.folder.write_workers(self.state.to_plain(progress.env_steps, progress.wall_s))

    def look(self, pids: Mapping[str, int]) -> RunState:
        """Return the states now. ``pids``: the process id of each worker that has a process. Within
        `LEAST_S` of the last call the result is the same as then."""
        now, counted = monotonic(), self._count()
        seconds = now - self._looked
        if self.state.workers and seconds < LEAST_S:
            return self.state
        idle = idle_s()
        restarted = self._of("restarts", counted) != self._of("restarts", self._counted)
        self._began = np.where(restarted, counted, self._began)
        self._changed[(counted != self._counted).any(axis=0)] = now
        with np.errstate(invalid="ignore"):  # a heartbeat may be infinite
            new = counted - self._counted
        workers = tuple(
            self._judge(node, counted, new, max(LEAST_S, seconds), pids) for node in self._nodes
        )
        limit = self._limit(new, max(LEAST_S, seconds), idle - self._idle)
        self._looked, self._counted, self._idle = now, counted, idle
        self.state = RunState(workers, limit or self.state.verdict)
        return self.state

    def _limit(self, new: npt.NDArray[np.float64], seconds: float, idle: float) -> Verdict | None:
        """Return the verdict on a time of ``seconds``, in which the workers have counted ``new``
        and cores were idle for ``idle`` seconds; None if nothing was learned in it."""
        context, counted = self._context, dict(zip(COUNTERS, new, strict=True))
        if context is None or not counted["env_steps"].sum():
            return None
        if not (counted["learn_s"].sum() or context.sampler_only):
            return None
        table = stages(counted, self._counter_rows, seconds)
        gpu = gpu_load(use.percent for use in self._gpus.use().values())
        return verdict(table, mean_fill(self._graph)[0], idle / seconds, context, gpu=gpu)

    def _judge(
        self,
        node: Node,
        counted: npt.NDArray[np.float64],
        new: npt.NDArray[np.float64],
        seconds: float,
        pids: Mapping[str, int],
    ) -> WorkerState:
        row, pid = node.counter_row, pids.get(node.name)
        started = bool((counted[self._work, row] != self._began[self._work, row]).any())
        beat = float(self._of("heartbeat", counted)[row])
        silent = self._silent(row, beat)
        # Without processes all workers take turns, and none waits.
        waits = float(self._of("wait_s", new)[row]) / seconds if pids else 0.0
        busy = min(1.0, max(0.0, 1.0 - waits)) if started and pids else None
        name, unit = RATES.get(node.role, ("", ""))
        rate = float(self._of(name, new)[row]) / seconds if name and started else None
        rows = int(self._of("started_rows", counted)[row])
        state: State = "running"
        if self._of("ended", counted)[row]:
            state = "ended"
        elif not started:
            state = "starting" if pids else "waiting"
        elif silent > STALLED_S and _should_beat(beat, pid):
            state = "stalled"
        elif busy is not None and busy < WAITING_BELOW:
            state = "waiting"
        return WorkerState(
            name=node.name,
            role=node.role,
            state=state,
            seconds=silent,
            busy=busy,
            rate=rate,
            unit=unit,
            restarts=int(self._of("restarts", counted)[row]),
            pid=pid,
            detail=f"{rows} envs started" if state == "starting" and rows else "",
        )

    def _silent(self, row: int, beat: float) -> float:
        """Return the seconds since a worker last counted anything."""
        now = monotonic()
        seen = now - float(self._changed[row])
        return min(seen, now - beat) if 0.0 < beat <= now else seen

    def _count(self) -> npt.NDArray[np.float64]:
        return self._graph.counters.columns(COUNTERS)

    def _of(self, name: str, counted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        row: npt.NDArray[np.float64] = counted[COUNTERS.index(name)]
        return row


def _should_beat(beat: float, pid: int | None) -> bool:
    """Return whether silence means that a worker is stalled. A learner in a long update has no
    heartbeat; it is stalled only if its process was stopped."""
    if beat > 0.0 and isfinite(beat):
        return True
    return pid is not None and is_stopped(pid)


def mean_fill(graph: Graph) -> tuple[float, float]:
    """Return the mean fractions of free and of ready slots over all groups; 0 without groups."""
    fills = [group.exchange.fill() for group in graph.groups if group.exchange is not None]
    free, ready = np.mean(fills or [(0.0, 0.0)], axis=0)
    return float(free), float(ready)


def idle_s() -> float:
    """Return the seconds, counted from any time, that the available cores were idle, summed over
    the cores; under a CPU quota those that it has allowed and that were not used."""
    if not cores_to_pin() and (idle := cgroup_idle_s()) is not None:
        return idle
    cores = psutil.cpu_times(percpu=True)
    return float(sum(cores[core].idle for core in available_cores() if core < len(cores)))

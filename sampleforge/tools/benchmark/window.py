"""One measurement: counters, processor time and queues of all workers between two moments."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from sampleforge.run.reports.system import NO_GPUS, Gpus, GpuUse, mean_use
from sampleforge.run.reports.workers import idle_s, mean_fill
from sampleforge.runners.base import Runner
from sampleforge.topologies.graph import COUNTERS, Graph

TICK = 0.1
"""Seconds between two samples of the queues."""
ANSWER_TIMEOUT = 60.0
"""Seconds within which a learner must return its metrics."""
SHORT_TICK = 0.01
"""Seconds between two checks for the end of a batch, at which a measurement begins or ends."""
LEARNERS_METRICS = (
    "policy_lag_mean",
    "policy_lag_max",
    "policy_lag_batches_mean",
    "policy_lag_batches_max",
    "valid_steps",
    "stale_steps",
)
"""The learners' metrics that a measurement reads."""
BATCH_LIMIT = 120.0
"""Seconds after which the measurement does not wait for the end of a batch any longer."""


@dataclass(frozen=True)
class Window:
    """The result of a measurement of ``seconds``.

    ``counted``: counter name -> [workers]; ``free`` and ``ready``: mean fractions of the slots;
    ``busy``: processor seconds per second of each process; ``idle_cores``: mean number of idle
    cores among those that the run may use; ``lag``: mean and maximum of the policy lag, in versions
    and in updates of a batch, None without a learner; ``stale``: fraction of the rows that were too
    old to learn from; ``gpus``: the use of each GPU by its device number, over all programs."""

    seconds: float
    counted: dict[str, npt.NDArray[np.float64]]
    free: float
    ready: float
    busy: dict[str, float]
    idle_cores: float
    lag: dict[str, float | None]
    stale: float = 0.0
    gpus: dict[int, GpuUse] = field(default_factory=dict)

    def rate(self, name: str) -> float:
        """Return a counter's increase per second, over all workers."""
        return float(self.counted[name].sum()) / self.seconds

    def per_step(self, name: str) -> float:
        """Return a counter of seconds as microseconds per env step."""
        steps = max(1.0, float(self.counted["env_steps"].sum()))
        return float(self.counted[name].sum()) / steps * 1e6


def measure(
    graph: Graph,
    runner: Runner,
    seconds: float,
    check: Callable[[], None],
    gpus: Gpus = NO_GPUS,
    *,
    whole_batches: bool = False,
) -> Window:
    """Measure the running ``graph`` for ``seconds``. ``check`` is called at every sample and may
    raise. ``gpus``: those of the run. Raises WorkerDied if a worker dies.

    ``whole_batches``: begin at the end of a batch and continue until the first end of a batch after
    ``seconds``. If sampling and learning take turns, any other span would hold too much of one of
    them.
    """
    if whole_batches:
        _wait_for_batch_end(graph, runner, check)
    _take_metrics(graph, runner)  # their means start anew
    processes = {"driver": psutil.Process(os.getpid())}
    processes |= {name: psutil.Process(pid) for name, pid in runner.pids().items()}
    before, used = _counted(graph), {name: _cpu_s(p) for name, p in processes.items()}
    idle = idle_s()
    begun, sampled_at, fills, uses = monotonic(), 0.0, [], []
    while monotonic() < begun + seconds:
        runner.poll(min(TICK, max(0.0, begun + seconds - monotonic())))
        if monotonic() >= sampled_at + TICK:
            sampled_at = monotonic()
            fills.append(mean_fill(graph))
            uses.append(gpus.use())
            check()
    if whole_batches:
        _wait_for_batch_end(graph, runner, check)
    after, elapsed = _counted(graph), monotonic() - begun
    busy = {name: (_cpu_s(p) - used[name]) / elapsed for name, p in processes.items()}
    learned = _take_metrics(graph, runner)
    free, ready = np.mean(fills, axis=0) if fills else mean_fill(graph)
    return Window(
        seconds=elapsed,
        counted={name: after[name] - before[name] for name in after},
        free=float(free),
        ready=float(ready),
        busy=busy,
        idle_cores=(idle_s() - idle) / elapsed,
        lag={
            "mean": learned.get("policy_lag_mean"),
            "max": learned.get("policy_lag_max"),
            "batches_mean": learned.get("policy_lag_batches_mean"),
            "batches_max": learned.get("policy_lag_batches_max"),
        },
        stale=learned.get("stale_steps", 0.0) / max(1.0, learned.get("valid_steps", 0.0)),
        gpus=mean_use(uses),
    )


def _wait_for_batch_end(graph: Graph, runner: Runner, check: Callable[[], None]) -> None:
    trained, give_up_at = graph.counters.total("trained_steps"), monotonic() + BATCH_LIMIT
    while graph.counters.total("trained_steps") == trained and monotonic() < give_up_at:
        runner.poll(SHORT_TICK)
        check()


def _take_metrics(graph: Graph, runner: Runner) -> dict[str, float]:
    """Return the policy lag and the counts of rows since the last call, over all policy groups:
    sums of counts, means of means, the largest of the maxima."""
    answers = [runner.ask(group.learner, "metrics", None, ANSWER_TIMEOUT) for group in graph.groups]
    metrics = {}
    for name in LEARNERS_METRICS:
        values = [answer[name] for answer in answers if name in answer]
        if values:
            metrics[name] = float(_combination(name)(values))
    return metrics


def _combination(name: str) -> Callable[[list[float]], Any]:
    """Return the function that combines the values of a metric of all policy groups."""
    if name.endswith("_mean"):
        return np.mean
    return np.max if name.endswith("_max") else np.sum


def _counted(graph: Graph) -> dict[str, npt.NDArray[np.float64]]:
    # A heartbeat is a time, and infinite for a worker without a step timeout.
    return {name: graph.counters.column(name) for name in COUNTERS if name != "heartbeat"}


def _cpu_s(process: psutil.Process) -> float:
    """Return the processor seconds that all threads of a process have used."""
    times = process.cpu_times()
    return float(times.user + times.system)

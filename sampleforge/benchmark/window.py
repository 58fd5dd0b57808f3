"""One measurement: what all workers counted, used and waited with between two moments."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from sampleforge.runners.base import Runner
from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.graph import COUNTERS, Graph

TICK = 0.1
"""Seconds between two looks at the queues."""
ANSWER_TIMEOUT = 60.0
SHORT_TICK = 0.01
"""The same, while a measurement waits for the end of a batch to begin or end at."""
LEARNERS_METRICS = (
    *("policy_lag_mean", "policy_lag_max", "policy_lag_batches_mean", "policy_lag_batches_max"),
    *("valid_steps", "stale_steps"),
)
BATCH_LIMIT = 120.0
"""Seconds after which it begins or ends all the same."""


@dataclass(frozen=True)
class Window:
    """``counted``: counter name -> [workers]; ``free`` and ``ready``: mean shares of the slots;
    ``busy``: processor seconds per second of each process; ``idle_cores``: of the cores that we may
    use, how many were idle; ``lag``: policy lag, mean and max, in versions and in updates of a
    batch, if there was a learner; ``stale``: the share of rows that were too old to learn from."""

    seconds: float
    counted: dict[str, npt.NDArray[np.float64]]
    free: float
    ready: float
    busy: dict[str, float]
    idle_cores: float
    lag: dict[str, float | None]
    stale: float = 0.0

    def rate(self, name: str) -> float:
        """Per second, over all workers."""
        return float(self.counted[name].sum()) / self.seconds

    def per_step(self, name: str) -> float:
        """Microseconds per env step, of a counter of seconds."""
        steps = max(1.0, float(self.counted["env_steps"].sum()))
        return float(self.counted[name].sum()) / steps * 1e6


def measure(
    graph: Graph,
    runner: Runner,
    seconds: float,
    go_on: Callable[[], None],
    *,
    whole_batches: bool = False,
) -> Window:
    """Watch the running ``graph`` for so many seconds; ``go_on`` is called at every look and may
    raise. Raises what the runner raises when a worker dies.

    ``whole_batches``: begin when a batch has been learned from and go on until the next one that
    ends after ``seconds``. Where sampling and learning take turns, any other span would have too
    much of one of them.
    """
    if whole_batches:
        _until_a_batch_ends(graph, runner, go_on)
    _learners_metrics(graph, runner)  # their means start anew
    processes = {"driver": psutil.Process(os.getpid())}
    processes |= {name: psutil.Process(pid) for name, pid in runner.pids().items()}
    before, used = _counted(graph), {name: _cpu_s(p) for name, p in processes.items()}
    idle = idle_s()
    begun, looked, fills = monotonic(), 0.0, []
    while monotonic() < begun + seconds:
        runner.poll(min(TICK, max(0.0, begun + seconds - monotonic())))
        if monotonic() >= looked + TICK:
            looked = monotonic()
            fills.append(mean_fill(graph))
            go_on()
    if whole_batches:
        _until_a_batch_ends(graph, runner, go_on)
    after, elapsed = _counted(graph), monotonic() - begun
    busy = {name: (_cpu_s(p) - used[name]) / elapsed for name, p in processes.items()}
    learned = _learners_metrics(graph, runner)
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
    )


def _until_a_batch_ends(graph: Graph, runner: Runner, go_on: Callable[[], None]) -> None:
    trained, give_up_at = graph.counters.total("trained_steps"), monotonic() + BATCH_LIMIT
    while graph.counters.total("trained_steps") == trained and monotonic() < give_up_at:
        runner.poll(SHORT_TICK)
        go_on()


def _learners_metrics(graph: Graph, runner: Runner) -> dict[str, float]:
    """Return the lag and the counts of rows since the last call, of all policy groups together:
    sums of counts, means of means, the largest of the maxima."""
    found = [runner.ask(group.learner, "metrics", None, ANSWER_TIMEOUT) for group in graph.groups]
    metrics = {}
    for name in LEARNERS_METRICS:
        values = [each[name] for each in found if name in each]
        if values:
            metrics[name] = float(_together(name)(values))
    return metrics


def _together(name: str) -> Callable[[list[float]], Any]:
    """Return the function that makes one value of all policy groups' values of a metric."""
    if name.endswith("_mean"):
        return np.mean
    return np.max if name.endswith("_max") else np.sum


def mean_fill(graph: Graph) -> tuple[float, float]:
    """Return the mean shares of free and of ready slots of all groups; 0 without any."""
    fills = [group.exchange.fill() for group in graph.groups] or [(0.0, 0.0)]
    free, ready = np.mean(fills, axis=0)
    return float(free), float(ready)


def _counted(graph: Graph) -> dict[str, npt.NDArray[np.float64]]:
    # A heartbeat is a time, and infinite where nobody is to wait for one.
    return {name: graph.counters.column(name) for name in COUNTERS if name != "heartbeat"}


def _cpu_s(process: psutil.Process) -> float:
    """Processor seconds that all threads of a process have used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def idle_s() -> float:
    """Seconds for which the cores that we may use were idle, together."""
    cores = psutil.cpu_times(percpu=True)
    return float(sum(cores[core].idle for core in available_cores() if core < len(cores)))

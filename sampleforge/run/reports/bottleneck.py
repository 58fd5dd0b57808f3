"""The bottleneck of a running training, judged at each report from the workers' counters."""

from __future__ import annotations

from time import monotonic

import numpy as np
import numpy.typing as npt
import psutil

from sampleforge.run.reports.stages import roles_of, stages
from sampleforge.run.reports.verdict import BenchmarkContext, Verdict, verdict
from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.graph import COUNTERS, Graph

LEAST_S = 0.5
"""Shortest time between two judgements, in seconds: less says nothing."""


class BottleneckWatch:
    """Judges the time since the last call of `look` by the rules of
    `sampleforge.run.reports.verdict`. A call takes less than a millisecond."""

    def __init__(self, graph: Graph, context: BenchmarkContext) -> None:
        self._graph = graph
        self._context = context
        self._roles = roles_of(graph)
        self._looked = monotonic()
        self._counted = self._count()
        self._idle = idle_s()

    def look(self) -> Verdict | None:
        """Return the verdict on the time since the last call, or None if there was no learning or
        the time was too short."""
        now, counted, idle = monotonic(), self._count(), idle_s()
        seconds = now - self._looked
        if seconds < LEAST_S:
            return None
        new = {name: counted[name] - self._counted[name] for name in counted}
        idle_cores = (idle - self._idle) / seconds
        self._looked, self._counted, self._idle = now, counted, idle
        if not new["env_steps"].sum() or not (new["learn_s"].sum() or self._context.sampler_only):
            return None
        table = stages(new, self._roles, seconds)
        free, _ = mean_fill(self._graph)
        return verdict(table, free, idle_cores, self._context)

    def _count(self) -> dict[str, npt.NDArray[np.float64]]:
        names = (name for name in COUNTERS if name != "heartbeat")
        return {name: self._graph.counters.column(name) for name in names}


def mean_fill(graph: Graph) -> tuple[float, float]:
    """Return the mean fractions of free and of ready slots over all groups; 0 without groups."""
    fills = [group.exchange.fill() for group in graph.groups if group.exchange is not None]
    free, ready = np.mean(fills or [(0.0, 0.0)], axis=0)
    return float(free), float(ready)


def idle_s() -> float:
    """Return the seconds that the available cores were idle since boot, summed over the cores."""
    cores = psutil.cpu_times(percpu=True)
    return float(sum(cores[core].idle for core in available_cores() if core < len(cores)))

"""What a run takes of the machine: processor time, memory, GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

import psutil

from sampleforge.runtime.machine import memory_available
from sampleforge.runtime.nvml import Gpus

MIB = float(1 << 20)
LEAST_S = 0.5
"""Shortest time between two measurements, in seconds: rates over less say nothing, and each takes
milliseconds of the driver's time."""


class SystemFigures:
    """The ``system_*`` scalars of reports. ``gpus``: CUDA's numbers of the devices in use."""

    def __init__(self, gpus: Iterable[int] = ()) -> None:
        devices = sorted(set(gpus))
        self._gpus = Gpus(devices) if devices else None
        self._cpu_s: dict[int, float] = {}
        self._at = monotonic()
        self._scalars: dict[str, float] = {}
        self.private: dict[int, int] = {}
        """Bytes of memory that each worker, by its pid, has for itself, with those of its
        descendants: without what it shares, at the last measurement."""
        psutil.cpu_percent(None)  # the next call says what was used since this one

    def scalars(self, workers: Iterable[int]) -> dict[str, float]:
        """Return the figures of this process, the processes ``workers`` (by pid) and their
        descendants; rates are over the time since the last measurement. Within `LEAST_S` of it the
        result is the same as then."""
        if not self._scalars or monotonic() - self._at >= LEAST_S:
            self._scalars = self._measure(workers)
        return self._scalars

    def _measure(self, workers: Iterable[int]) -> dict[str, float]:
        now, before = monotonic(), self._cpu_s
        self._cpu_s, self.private, shared = {}, {}, 0
        for process, worker in _family(set(workers)):
            with suppress(psutil.Error), process.oneshot():  # it may just have ended
                times, memory = process.cpu_times(), process.memory_info()
                self._cpu_s[process.pid] = times.user + times.system
                common = getattr(memory, "shared", 0)
                self.private[worker] = self.private.get(worker, 0) + memory.rss - common
                shared = max(shared, common)
        used = sum(seconds - before.get(pid, 0.0) for pid, seconds in self._cpu_s.items())
        cores = used / max(1e-9, now - self._at) if before else 0.0
        self._at = now
        return {
            **({"system_cpu_cores": max(0.0, cores)} if before else {}),
            "system_cpu_percent": psutil.cpu_percent(None),
            "system_rss_mib": (sum(self.private.values()) + shared) / MIB,
            "system_memory_available_mib": memory_available() / MIB,
            **self._gpu_scalars(),
        }

    def _gpu_scalars(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        for device, use in ({} if self._gpus is None else self._gpus.use()).items():
            if use.percent is not None:
                figures[f"system_gpu{device}_percent"] = use.percent
            figures[f"system_gpu{device}_memory_mib"] = use.memory / MIB
        return figures


def _family(workers: set[int]) -> list[tuple[psutil.Process, int]]:
    """Return this process, the processes ``workers`` and the descendants of these, each with the
    pid of the worker that it belongs to; all descendants of this process if it has no workers,
    because it works itself. Workers are children of the fork server, and so descendants of this
    process."""
    own = psutil.Process()
    family = [(own, own.pid)]
    belongs = {pid: pid for pid in workers or {own.pid}}
    for process in own.children(recursive=True):  # parents come before their children
        with suppress(psutil.Error):
            worker = belongs.get(process.pid, belongs.get(process.ppid()))
            if worker is not None:
                belongs[process.pid] = worker
                family.append((process, worker))
    return family

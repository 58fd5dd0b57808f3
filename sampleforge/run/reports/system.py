"""What a run takes of the machine: processor time, memory, and the GPUs, whose load and memory are
asked of the driver's own library (NVML), which needs no package and no CUDA context."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import psutil

from sampleforge.run.callback import Callback
from sampleforge.runtime.machine import memory_available
from sampleforge.topologies.config import AnyConfig, RanksRunConfig
from sampleforge.topologies.devices import peer_devices
from sampleforge.workers.config import LearnersConfig

if TYPE_CHECKING:
    from sampleforge.run.session import Session
    from sampleforge.topologies.registry import AnyPlan

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0


class GpuUse(NamedTuple):
    """The use of a GPU by all programs: ``percent`` of the last sampling period in which it
    computed (None: the driver does not tell, as for a part of a GPU), bytes of memory in use."""

    percent: float | None
    memory: int

    @property
    def memory_mib(self) -> float:
        return self.memory / MIB


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@cache
def _nvml() -> ctypes.CDLL | None:
    """Return the driver's library; None, with a warning once, where it cannot be used."""
    try:
        library = ctypes.CDLL(LIBRARY)
        code = int(library.nvmlInit_v2())
        problem = "" if code == SUCCESS else f"nvmlInit failed with code {code}"
    except (OSError, AttributeError) as error:
        problem = str(error)
    if not problem:
        return library
    log.warning(
        "No load and memory of the GPUs: the driver's library %s cannot be used (%s); in a "
        "container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        LIBRARY,
        problem,
    )
    return None


class Gpus:
    """The GPUs of CUDA's device numbers ``devices``; those that the driver does not know are left
    out, all of them without NVML."""

    def __init__(self, devices: list[int]) -> None:
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._nvml = _nvml() if devices else None
        for device in devices if self._nvml is not None else ():
            handle = self._handle(device)
            if handle is not None:
                self._handles[device] = handle

    def _handle(self, device: int) -> ctypes.c_void_p | None:
        """Return NVML's handle of CUDA's device number ``device``, which counts the devices in
        CUDA_VISIBLE_DEVICES: numbers, or identifiers such as GPU-8932f937-...; else None."""
        assert self._nvml is not None
        handle, visible = ctypes.c_void_p(), os.environ.get("CUDA_VISIBLE_DEVICES")
        name = str(device)
        if visible is not None:
            names = [each.strip() for each in visible.split(",")]
            if device >= len(names):
                return None
            name = names[device]
        if name.isdecimal():
            found = self._nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
        else:
            found = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return handle if found == SUCCESS else None

    def use(self) -> dict[int, GpuUse]:
        """Return the present use of each GPU by its device number."""
        uses = {}
        for device, handle in self._handles.items():
            assert self._nvml is not None
            memory, load = _Memory(), _Utilization()
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != SUCCESS:
                continue
            told = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(load)) == SUCCESS
            uses[device] = GpuUse(float(load.gpu) if told else None, memory.used)
        return uses


def mean_use(uses: Sequence[dict[int, GpuUse]]) -> dict[int, GpuUse]:
    """Return the use of each GPU over several moments: the mean of its load, as far as the driver
    tells it, and the most memory."""
    found: dict[int, list[GpuUse]] = {}
    for each in uses:
        for device, use in each.items():
            found.setdefault(device, []).append(use)
    means = {}
    for device, several in found.items():
        told = [use.percent for use in several if use.percent is not None]
        percent = sum(told) / len(told) if told else None
        means[device] = GpuUse(percent, max(use.memory for use in several))
    return means


NO_GPUS = Gpus([])
MIB = float(1 << 20)
LEAST_S = 0.5
"""Shortest time between two measurements, in seconds: rates over less say nothing, and each takes
milliseconds of the driver's time."""


class SystemMetrics(Callback):
    """Adds processor time, memory and the use of GPUs to each report, as ``system_*``. ``gpus``:
    CUDA's numbers of the devices in use."""

    def __init__(self, gpus: Iterable[int] = ()) -> None:
        self._gpus = Gpus(sorted(set(gpus)))
        self._cpu_s: dict[int, float] = {}
        self._at = monotonic()
        self._scalars: dict[str, float] = {}
        self.private: dict[int, int] = {}
        """Bytes of memory that each worker, by its pid, has for itself, with those of its
        descendants: without what it shares, at the last measurement."""
        psutil.cpu_percent(None)  # the next call says what was used since this one

    def extend_report(self, session: Session, report: dict[str, float]) -> None:
        report |= self.scalars(session.runner.pids().values())

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
        for device, use in self._gpus.use().items():
            if use.percent is not None:
                figures[f"system_gpu{device}_percent"] = use.percent
            figures[f"system_gpu{device}_memory_mib"] = use.memory_mib
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


def gpus_of(config: AnyConfig, plan: AnyPlan) -> set[int]:
    """Return CUDA's numbers of the devices that a run uses."""
    if plan.device == "cpu":
        return set()
    several, learners = 1, tuple[str, ...]()
    if isinstance(config, LearnersConfig):
        several, learners = config.num_learners, config.learner_devices
    elif isinstance(config, RanksRunConfig):
        several = plan.num_workers
    names = {*(learners or peer_devices(plan.device, several))}
    if getattr(plan, "inference", None) == "worker":
        names.add(plan.device)
    return {int(name.partition(":")[2] or 0) for name in names}

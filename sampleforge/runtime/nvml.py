"""Load and memory of NVIDIA GPUs, asked of the driver's own library (NVML). It needs no package and
no CUDA context."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0


class GpuUse(NamedTuple):
    """The use of a GPU by all programs: ``percent`` of the last sampling period in which it
    computed (None: the driver does not tell, as for a part of a GPU), bytes of memory in use."""

    percent: float | None
    memory: int


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Gpus:
    """The GPUs of CUDA's device numbers ``devices``; those that the driver does not know are left
    out, all of them without NVML."""

    def __init__(self, devices: list[int]) -> None:
        self._handles: dict[int, ctypes.c_void_p] = {}
        try:
            self._nvml = ctypes.CDLL(LIBRARY)
            if self._nvml.nvmlInit_v2() != SUCCESS:
                return
        except (OSError, AttributeError):
            return
        for device in devices:
            handle = self._handle(device)
            if handle is not None:
                self._handles[device] = handle

    def _handle(self, device: int) -> ctypes.c_void_p | None:
        """Return NVML's handle of CUDA's device number ``device``, which counts the devices in
        CUDA_VISIBLE_DEVICES: numbers, or identifiers such as GPU-8932f937-...; else None."""
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
            memory, load = _Memory(), _Utilization()
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != SUCCESS:
                continue
            told = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(load)) == SUCCESS
            uses[device] = GpuUse(float(load.gpu) if told else None, memory.used)
        return uses

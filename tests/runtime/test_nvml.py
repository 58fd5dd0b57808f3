"""The use of GPUs, as the driver's library tells it; the library here is a fake."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from sampleforge.run.reports.system import SystemFigures
from sampleforge.runtime.nvml import Gpus, GpuUse

GIB = 1 << 30


class FakeNvml:
    """Three GPUs: number i uses i + 1 GiB and computes 10 * (i + 1) percent of the time; the last
    one is a part of a GPU, which does not tell its load."""

    uuids = (b"GPU-a", b"GPU-b", b"MIG-c")

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        if index >= len(self.uuids):
            return 2
        handle._obj.value = index + 1  # a handle of 0 would be NULL
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        return self.nvmlDeviceGetHandleByIndex_v2(self.uuids.index(uuid), handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used = handle.value * GIB
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, load: Any) -> int:
        load._obj.gpu = handle.value * 10
        return 0 if handle.value < 3 else 3


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_each_gpu_is_asked_for_its_load_and_memory(nvml: None) -> None:
    assert Gpus([0, 2]).use() == {0: GpuUse(10.0, GIB), 2: GpuUse(None, 3 * GIB)}
    assert Gpus([7]).use() == {}, "the driver knows no such GPU"


@pytest.mark.parametrize("visible", ["1, 0", "GPU-b,GPU-a"])
def test_devices_are_counted_as_cuda_counts_them(
    nvml: None, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Gpus([0, 1, 2]).use() == {0: GpuUse(20.0, 2 * GIB), 1: GpuUse(10.0, GIB)}


def test_the_figures_are_metrics_named_by_the_device(nvml: None) -> None:
    scalars = SystemFigures([2, 1]).scalars([])
    assert {n: v for n, v in scalars.items() if "gpu" in n} == {
        **{"system_gpu1_percent": 20.0, "system_gpu1_memory_mib": 2048.0},
        "system_gpu2_memory_mib": 3072.0,
    }


def test_without_the_library_there_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert Gpus([0]).use() == {}

"""Processor time, memory and the use of GPUs in the reports; NVIDIA's library is a fake."""

from __future__ import annotations

import ctypes
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import numpy as np
import psutil
import pytest

from sampleforge.api import Trainer
from sampleforge.run.reports import system
from sampleforge.run.reports.system import LEAST_S, Gpus, GpuUse, SystemMetrics, _nvml, mean_use
from sampleforge.topologies.config import AppoConfig


@pytest.mark.long
def test_the_figures_of_a_process_are_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = SystemMetrics()
    first = figures.scalars([])
    assert "system_cpu_cores" not in first, "nothing to compare with"
    began, used = monotonic(), process_time()
    held = np.ones(64 << 20, np.uint8)  # of which no copy was made, that malloc might keep
    with monkeypatch.context() as patch:
        patch.setattr(system, "LEAST_S", 3600.0)
        assert figures.scalars([]) is first, "too soon for a rate"
    while monotonic() - began < 4 * LEAST_S:  # long, compared with what a busy machine keeps us
        pass
    took, cpu = monotonic() - began, process_time() - used
    second = figures.scalars([])
    assert 0.5 * cpu / took < second["system_cpu_cores"] < 2 * cpu / took + 0.2
    grown = second["system_rss_mib"] - first["system_rss_mib"]
    assert 50 < grown < 100, f"{len(held)} bytes"
    own = psutil.Process().memory_info().rss / (1 << 20)
    assert second["system_rss_mib"] >= 0.99 * own
    assert 0 <= second["system_cpu_percent"] <= 100
    assert 0 < second["system_memory_available_mib"] * (1 << 20) <= psutil.virtual_memory().total


@pytest.mark.multiprocess(timeout=60)
def test_the_workers_of_a_run_are_counted(tmp_path: Path) -> None:
    config = AppoConfig(
        env="CartPole-v1",
        num_workers=1,
        num_envs_per_worker=4,
        report_interval=0.3,
        run_dir=str(tmp_path),
    )
    with Trainer(config) as trainer:
        reports = iter(trainer)
        report = next(r for r in reports if "system_cpu_cores" in r and r["env_steps"] > 0)
        pids = trainer.session.runner.pids().values()
        figures = SystemMetrics()
        figures.scalars(pids)
        assert figures.private.keys() >= set(pids), "of each worker"
        assert figures.private[trainer.session.runner.pids()["actor 0"]] > 5 << 20
        private = sum(_private(pid) for pid in pids) / (1 << 20)
    assert report["system_cpu_cores"] > 0.05
    assert report["system_rss_mib"] > private > 10


def _private(pid: int) -> int:
    memory = psutil.Process(pid).memory_info()
    return int(memory.rss - memory.shared)


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
    _nvml.cache_clear()
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
    scalars = SystemMetrics([2, 1]).scalars([])
    assert {n: v for n, v in scalars.items() if "gpu" in n} == {
        **{"system_gpu1_percent": 20.0, "system_gpu1_memory_mib": 2048.0},
        "system_gpu2_memory_mib": 3072.0,
    }


def test_the_use_over_a_time_is_the_mean_load_and_the_most_memory() -> None:
    moments = [{0: GpuUse(10.0, 5), 1: GpuUse(None, 1)}, {}, {0: GpuUse(40.0, 3)}]
    assert mean_use(moments) == {0: GpuUse(25.0, 5), 1: GpuUse(None, 1)}


def test_without_the_library_there_are_no_figures_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    _nvml.cache_clear()
    assert Gpus([]).use() == {} and not caplog.messages, "a run on the CPU needs no library"
    assert Gpus([0]).use() == {}
    assert SystemMetrics([1])._gpus.use() == {}
    (said,) = caplog.messages
    assert "libnvidia-ml.so.1" in said and "NVIDIA_DRIVER_CAPABILITIES" in said
    _nvml.cache_clear()

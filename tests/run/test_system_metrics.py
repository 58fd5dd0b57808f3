"""Processor time and memory in the reports."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic, process_time

import psutil
import pytest

from sampleforge.api import Trainer
from sampleforge.run.reports import system
from sampleforge.run.reports.system import LEAST_S, SystemFigures
from sampleforge.topologies.config import AppoConfig


@pytest.mark.long
def test_the_figures_of_a_process_are_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = SystemFigures()
    first = figures.scalars([])
    assert "system_cpu_cores" not in first, "nothing to compare with"
    began, used = monotonic(), process_time()
    held = bytearray(os.urandom(1 << 20) * 64)
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
        figures = SystemFigures()
        figures.scalars(pids)
        assert figures.private.keys() >= set(pids), "of each worker"
        assert figures.private[trainer.session.runner.pids()["actor 0"]] > 5 << 20
        private = sum(_private(pid) for pid in pids) / (1 << 20)
    assert report["system_cpu_cores"] > 0.05
    assert report["system_rss_mib"] > private > 10


def _private(pid: int) -> int:
    memory = psutil.Process(pid).memory_info()
    return int(memory.rss - memory.shared)

"""What this process may have: memory and processors of a container, and open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampleforge.config import ConfigError
from sampleforge.runtime import machine, processes
from sampleforge.runtime.limits import (
    WANTED,
    cgroup_cpu_quota,
    cgroup_idle_s,
    cgroup_memory_free,
    cgroup_memory_limit,
    check_workers,
    raise_limit,
)
from sampleforge.shared.arrays import SharedArrays

GIB = 1 << 30


def tree(folder: Path, files: dict[str, str], own: str) -> dict[str, Any]:
    """Write these files below a root; return the arguments that name them."""
    root = folder / "cgroup"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (folder / "own").write_text(own)
    return {"root": root, "own": folder / "own"}


def test_version_2_counts_the_lowest_limit_on_the_way_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sampleforge.runtime.limits.monotonic", lambda: 100.0)
    of = tree(
        tmp_path,
        {
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "pod/cpu.max": "150000 100000\n",
            "pod/cpu.stat": "usage_usec 30500000\nuser_usec 30000000\nnr_periods 0\n",
            "pod/memory.max": f"{4 * GIB}\n",
            "pod/memory.current": f"{3 * GIB}\n",
            "pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "pod/a/cpu.max": "400000 100000\n",
            "pod/a/cpu.stat": "usage_usec 20500000\n",
            "pod/a/memory.max": f"{5 * GIB}\n",
            "pod/a/memory.current": f"{GIB}\n",
        },
        "0::/pod/a\n",
    )
    assert cgroup_cpu_quota(**of) == 1.5
    assert cgroup_idle_s(**of) == 150 - 30.5
    assert cgroup_memory_limit(**of) == 4 * GIB
    assert cgroup_memory_free(**of) == 2 * GIB


def test_version_2_within_a_container_begins_at_its_own_group(tmp_path: Path) -> None:
    files = {"cpu.max": "50000 100000", "memory.max": str(GIB), "memory.current": str(2 * GIB)}
    of = tree(tmp_path, files, "0::/../../elsewhere\n")
    assert cgroup_cpu_quota(**of) == 0.5
    assert cgroup_idle_s(**of) is None, "what was used is not known"
    assert cgroup_memory_free(**of) == 0


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampleforge.runtime.limits.monotonic", lambda: 100.0)
    of = tree(
        tmp_path,
        {
            "cpu/docker/x/cpu.cfs_quota_us": "200000\n",
            "cpu/docker/x/cpu.cfs_period_us": "100000\n",
            "cpu/docker/x/cpuacct.usage": "30500000000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/docker/x/memory.limit_in_bytes": f"{GIB}\n",
            "memory/docker/x/memory.usage_in_bytes": f"{GIB // 2}\n",
            "memory/docker/x/memory.stat": f"total_inactive_file {GIB // 4}\n",
            "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        },
        "12:cpu,cpuacct:/docker/x\n7:memory:/docker/x\n1:name=systemd:/docker/x\n",
    )
    assert cgroup_cpu_quota(**of) == 2.0
    assert cgroup_idle_s(**of) == 200 - 30.5
    assert cgroup_memory_free(**of) == GIB * 3 // 4


@pytest.mark.parametrize("own", ["0::/\n", "", "nonsense"])
def test_without_limits_there_are_none(tmp_path: Path, own: str) -> None:
    of = tree(tmp_path, {"cpu.max": "max 100000", "memory.max": "max"}, own)
    assert cgroup_cpu_quota(**of) is None
    assert cgroup_idle_s(**of) is None
    assert cgroup_memory_limit(**of) is None
    assert cgroup_memory_free(**of) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 3), (0.2, 1), (64.0, 8)])
def test_cores_are_no_more_than_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processes, "cgroup_cpu_quota", lambda: quota)
    assert processes.available_cores() == list(range(cores))
    pinnable = cores == 8  # under a quota all containers would pin to the same first cores
    assert processes.cores_to_pin() == (list(range(8)) if pinnable else [])


@pytest.mark.parametrize(
    ("quota", "pins", "used"),
    [(None, True, [4, 5]), (None, False, [0, 1]), (4.0, True, [0, 1]), (1.0, True, [0])],
)
def test_a_job_is_pinned_to_its_share_of_the_cores_but_not_under_a_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, pins: bool, used: list[int]
) -> None:
    """Under a quota the jobs of all containers would be pinned to the same first cores."""
    allowed = {0: set(range(8))}
    monkeypatch.setattr("os.sched_getaffinity", allowed.get)
    monkeypatch.setenv(processes.CORE_SHARE, "8")  # the test's end takes back what is set
    monkeypatch.setattr(processes, "cgroup_cpu_quota", lambda: quota)
    if pins:
        monkeypatch.setattr("os.sched_setaffinity", allowed.__setitem__)
    else:
        monkeypatch.delattr("os.sched_setaffinity")
    cores = processes.available_cores()
    share = (4, 5) if quota is None else tuple(cores[:2])
    processes.use_cores(share)
    assert sorted(allowed[0]) == ([4, 5] if pins and quota is None else list(range(8)))
    assert processes.available_cores() == used
    assert processes.cores_to_pin() == ([4, 5] if pins and quota is None else [])


def test_memory_is_no_more_than_the_group_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_memory_free", lambda: 12345)
    assert machine.shared_memory_free() == 12345
    monkeypatch.setattr(machine, "cgroup_memory_free", lambda: None)
    most = psutil.virtual_memory().total
    assert 0 < machine.memory_available() <= most


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_and_never_lowered(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    raise_limit()
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (min(hard, WANTED), hard)
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised


def test_workers_that_need_too_many_open_files_are_refused_with_the_remedy(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that has as many files open as a command at its start; this one has those of
    other tests, too."""
    monkeypatch.setattr("sampleforge.runtime.limits._open_now", lambda: 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    check_workers(20)
    with pytest.raises(ConfigError, match=r"200 workers need 1200 .* \(ulimit -n 2048\).*--num-w"):
        check_workers(200)


def test_memory_that_cannot_be_opened_names_the_limit(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    kept = []
    with pytest.raises(ConfigError, match=r"open files as it may \(64, ulimit -n\)"):
        for _ in range(100):
            kept.append(SharedArrays({"x": ((1,), "int64")}))


@pytest.mark.multiprocess
def test_256_open_files_end_a_command_with_many_workers_in_a_message(tmp_path: Path) -> None:
    command = (
        f"ulimit -n 256; exec {sys.executable} -m sampleforge train appo --env CartPole-v1 "
        "--num-workers 64 --num-envs-per-worker 1 --num-splits 1 --rollout 4 --batch-size 256 "
        "--minibatch-size 256 --train-for-env-steps 1000 --run-dir run"
    )
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "raise the limit (ulimit -n 1024)" in said, said
    assert "Traceback" not in said

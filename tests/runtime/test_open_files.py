"""Too few open files: the limit is raised as far as it may be, else the run does not start."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampleforge.config import ConfigError
from sampleforge.runtime import open_files
from sampleforge.runtime.open_files import check_workers, raise_limit
from sampleforge.shared.arrays import SharedArrays


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
    assert raised == (min(hard, open_files.WANTED), hard)
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised


def test_workers_that_need_too_many_open_files_are_refused_with_the_remedy(
    limits: tuple[int, int],
) -> None:
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
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "raise the limit (ulimit -n 1024)" in said, said
    assert "Traceback" not in said

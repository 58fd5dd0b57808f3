"""One process, one seed: every bit again; and an end, whatever an environment does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sampleforge.runners.serial import SerialRunner
from sampleforge.topologies.config import AppoConfig
from tests.support.envs import CodeEnv
from tests.support.offline import wired
from tests.support.serial_runs import run_serially

released = threading.Event()


class NeverCloses(CodeEnv):
    """Its ``close`` hangs until the test ends."""

    def close(self) -> None:
        released.wait()


def test_an_environment_that_does_not_close_is_warned_of_and_left() -> None:
    released.set()  # another one is closed to know the spaces
    config = AppoConfig(env=f"{__name__}:NeverCloses", serial=True, num_envs_per_worker=2)
    runner = SerialRunner(wired(config)[0], close_s=0.2)
    runner.start()
    runner.poll(0.0)
    released.clear()
    runner.close()
    (event,) = runner.take_events()
    level, text = event.payload
    released.set()
    for thread in threading.enumerate():
        if thread.name == "closing":
            thread.join()
    assert level == "warning" and "actor 0 has not closed its environments within 0.2 s" in text
    assert "may have to be ended by hand" in text


@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_a_seed_gives_the_same_weights_and_metrics_again(tmp_path: Path, inference: Any) -> None:
    first, first_reports = run_serially(tmp_path / "1", 7, inference=inference)
    second, second_reports = run_serially(tmp_path / "2", 7, inference=inference)
    assert len(first_reports) >= 4
    assert first_reports == second_reports
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, _ = run_serially(tmp_path / "1", 7)
    second, _ = run_serially(tmp_path / "2", 8)
    assert not all(tensor.equal(second[name]) for name, tensor in first.items())

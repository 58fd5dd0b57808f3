"""One process, one seed: every bit again; and an end, whatever an environment does."""

from __future__ import annotations

import signal
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


class ClosesWhereMade(CodeEnv):
    """As a window or a database connection, it can only be closed by the thread that made it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.made_in = threading.get_ident()

    def close(self) -> None:
        assert threading.get_ident() == self.made_in


def warnings_of_closing(env: str, caplog: pytest.LogCaptureFixture, close_s: float) -> list[str]:
    """Run a step of two rows of an environment, and close them."""
    config = AppoConfig(env=f"{__name__}:{env}", serial=True, num_envs_per_worker=2)
    runner = SerialRunner(wired(config)[0], close_s)
    runner.start()
    runner.poll(0.0)
    caplog.clear()
    released.clear()
    try:
        with caplog.at_level("WARNING"):
            runner.close()
    finally:
        released.set()
    return [record.getMessage() for record in caplog.records]


def test_an_environment_is_closed_in_the_thread_that_has_made_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings_of_closing("ClosesWhereMade", caplog, 60.0) == []


def test_an_environment_that_does_not_close_is_warned_of_and_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released.set()  # another one is closed to know the spaces
    limit = signal.getitimer(signal.ITIMER_REAL)[0]
    (text,) = warnings_of_closing("NeverCloses", caplog, 0.2)
    assert "actor 0: closing its environments failed" in text
    assert "the environments have not closed within 0.2 s" in text
    assert "may have to be ended by hand" in text
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < limit, "the test's own alarm goes on"


@pytest.mark.long
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_a_seed_gives_the_same_weights_and_metrics_again(tmp_path: Path, inference: Any) -> None:
    first, first_reports = run_serially(tmp_path / "1", 7, inference=inference)
    second, second_reports = run_serially(tmp_path / "2", 7, inference=inference)
    assert len(first_reports) >= 4
    assert first_reports == second_reports
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


@pytest.mark.long
def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, _ = run_serially(tmp_path / "1", 7)
    second, _ = run_serially(tmp_path / "2", 8)
    assert not all(tensor.equal(second[name]) for name, tensor in first.items())

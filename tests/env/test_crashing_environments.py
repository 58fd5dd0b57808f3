"""Environments that raise now and then: shown once, counted always, and too many end the run."""

from __future__ import annotations

from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sampleforge.env.config import EnvConfig
from sampleforge.env.registry import make_vector
from sampleforge.env.threaded import ThreadedVector
from sampleforge.env.vector import EnvVector, own_outputs
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.progress import Goal
from sampleforge.run.screen.screen import LineDisplay
from sampleforge.run.watches import EnvironmentFails, EnvRestarts
from sampleforge.shared.counters import FAULT_BYTES, Counters, FirstFault
from tests.support.envs import FlakyEnv
from tests.support.processes import RunCli, StartCli
from tests.support.runs import last_report, summary, until, worker
from tests.support.variants import slow

FLAKY = "tests.support.envs:FlakyEnv"
SETTINGS = {
    "appo": "appo --num-workers 1",
    "apex": "apex --num-workers 1 --learning-starts 500",
    "ddppo": "ddppo --num-ranks 2 --rollout 32 --device cpu",
    "variable": "ddppo --num-ranks 1 --rollout 32 --device cpu --variable-experience",
    "serial": "appo --num-workers 1 --serial",
}
COMMON = "--num-envs-per-worker 4 --report-interval 0.3 --run-dir run --seed 1"


def command(kind: str, **kwargs: int) -> list[str]:
    env = f"--env {FLAKY} --env-kwargs " + " ".join(f"{k}={v}" for k, v in kwargs.items())
    return ["train", *SETTINGS[kind].split(), *env.split(), *COMMON.split()]


def counted(lost: int, finished: int, counters: Counters | None = None) -> Counters:
    counters = counters or Counters(("env_restarts", "episodes"), 2)
    counters.row(1)["env_restarts"][0] = lost
    counters.row(0)["episodes"][0] = finished
    return counters


@pytest.mark.multiprocess(timeout=150)
@pytest.mark.parametrize("kind", ["appo", slow("apex"), slow("ddppo"), "variable", "serial"])
def test_an_environment_whose_every_second_episode_crashes_ends_the_run(
    run_cli: RunCli, tmp_path: Path, kind: str
) -> None:
    """No row crashes often enough in a row to end it: a hundred good steps lie in between."""
    done = run_cli(
        *command(kind, every=101), "--train-for-env-steps", "10000000", "--quiet", timeout=120
    )
    assert done.returncode == 1, done.stdout
    end = done.stderr.rstrip().splitlines()
    assert end[-1].startswith(f"({FLAKY}, row "), end[-5:]
    assert end[-2].startswith("ValueError: deliberate: fault 1"), "the first one"
    assert "--max-env-restart-rate 0.1" in done.stderr
    assert done.stderr.count("ValueError: deliberate") <= 2 + done.stderr.count("rebuilt after")
    found = summary(tmp_path / "run")
    assert found["status"] == "failed" and "deliberate: fault 1" in found["error"]
    assert found["env_restarts"] >= 20 and found["restarts"] == 0
    assert "ValueError: deliberate: fault 1" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.multiprocess(timeout=150)
@pytest.mark.parametrize("kind", ["appo", "serial"])
def test_a_rare_crash_of_an_environment_is_shown_and_counted_and_the_run_goes_on(
    run_cli: RunCli, tmp_path: Path, kind: str
) -> None:
    # The last fault is at 6,000: an actor that is told late of the end comes to no other, and the
    # last report does not miss it.
    goal = ("--train-for-env-steps", "6700")
    done = run_cli(*command(kind, every=1500, most=4), *goal, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "an environment raised an error" in done.stderr
    assert "ValueError: deliberate: fault 1" in done.stderr
    assert "in step\n" in done.stderr, "it is the traceback"
    assert f"({FLAKY}, row " in done.stderr and "Correct the environment" in done.stderr
    assert "env restarts" in done.stdout
    found, last = summary(tmp_path / "run"), last_report(tmp_path / "run")
    assert found["status"] == "finished"
    assert found["env_restarts"] == last["env_restarts"] == 4


@pytest.mark.multiprocess(timeout=150)
def test_a_restarted_actor_continues_its_counters(start_cli: StartCli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_cli(*command("appo", every=400), "--quiet")

    def reported(name: str) -> float:
        metrics = run / "metrics.jsonl"
        return float(last_report(run)[name]) if metrics.exists() and metrics.read_text() else 0.0

    until(lambda: reported("env_restarts") >= 3, process)
    before = reported("env_restarts")
    worker(process, "sampleforge: actor 0").kill()
    until(lambda: reported("restarts") == 1, process)
    until(lambda: reported("env_restarts") >= before + 3, process)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert stderr.count("an environment raised an error") == 1


@pytest.mark.parametrize("threaded", [False, True])
def test_rows_keep_the_first_traceback(threaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlakyEnv, "steps_taken", 0)
    monkeypatch.setattr(FlakyEnv, "faults", 0)
    config = EnvConfig(env=FLAKY, env_kwargs={"every": 7})
    make = partial(make_vector, config, 2, [1, 2])
    envs: EnvVector = ThreadedVector(make, lambda: None) if threaded else make()
    out = own_outputs(envs.spec, 2)
    envs.reset(out.obs)
    assert envs.fault is None
    for _ in range(12):
        envs.send({"action": out.terminated.astype("int64")})
        envs.recv(out)
    envs.close()
    assert envs.rebuilt == 3
    assert envs.fault is not None
    assert "Traceback" in envs.fault and "ValueError: deliberate: fault 1" in envs.fault
    assert envs.fault.endswith(f"({FLAKY}, row 0)")


def test_first_fault_returns_the_earliest_text_and_the_end_of_a_long_one() -> None:
    faults = FirstFault(3)
    assert faults.get() is None
    faults.put(2, "later", 20.0)
    faults.put(1, "x" * FAULT_BYTES + "the cause é", 10.0)
    faults.put(1, "not the first", 5.0)
    text = faults.get()
    assert text is not None and text.endswith("xthe cause é") and len(text) <= FAULT_BYTES


@pytest.mark.parametrize(
    ("lost", "finished", "ends"),
    [(1, 0, False), (19, 0, False), (20, 0, True), (20, 200, False), (30, 200, True)],
)
def test_the_first_fault_is_shown_and_a_tenth_of_the_episodes_ends_the_run(
    lost: int, finished: int, ends: bool
) -> None:
    counters = counted(lost, finished)
    counters.first_fault.put(0, "the cause", 1.0)
    said: list[str] = []
    restarts = EnvRestarts(counters, 0.1)
    if ends:
        with pytest.raises(EnvironmentFails, match=r"(?s)--max-env-restart-rate 0.1.*the cause$"):
            restarts.look(said.append)
    else:
        restarts.look(said.append)
        restarts.look(said.append)
    assert len(said) == 1 and "the cause" in said[0]


def test_the_rate_of_env_restarts_is_that_of_the_latest_episodes() -> None:
    """One that breaks after a long good time ends the run as soon as one that was never good; rows
    that are all lost once do not."""
    counters = counted(0, 0)
    restarts = EnvRestarts(counters, 0.1)
    for finished in range(0, 100_000, 100):
        restarts.look(print)
        counted(0, finished, counters)
    restarts.look(print)
    counted(64, 99_900, counters)
    restarts.look(print)
    for finished in range(100_000, 110_000, 100):
        counted(64, finished, counters)
        restarts.look(print)
    with pytest.raises(EnvironmentFails):
        for lost in range(64, 300, 5):
            counted(lost, 109_900, counters)
            restarts.look(print)


def test_with_a_rate_of_one_no_number_of_restarts_ends_the_run() -> None:
    counters = counted(5000, 10)
    EnvRestarts(counters, 1.0).look(print)


def test_the_number_of_env_restarts_is_on_the_screen() -> None:
    values = {"env_steps": 1000.0, "wall_s": 10.0, "episodes": 95.0, "env_restarts": 5.0}
    written = StringIO()
    console = Console(file=written, width=100)
    goal = Goal(None, None)
    goal.observe(values)
    console.print(LivePanel("a run", values, goal))
    assert "env restarts 5: 5.0% of the episodes were lost" in written.getvalue()
    display = LineDisplay(console, console, goal)
    written.truncate(0)
    display.update(values)
    display.update(values)
    assert written.getvalue().count("env restarts 5") == 1, "only when there are more"

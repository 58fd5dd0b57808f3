"""The states of workers: judged from what they count, on the terminal, and in workers.json."""

from __future__ import annotations

import io
import json
import os
import re
from math import inf
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from sampleforge.api import train
from sampleforge.run.reports import workers
from sampleforge.run.reports.verdict import CounterRows, StageTime, Verdict, VerdictContext, verdict
from sampleforge.run.reports.workers import RunState, RunWatch, WorkerState, idle_s
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.progress import Goal
from sampleforge.runtime.processes import available_cores
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import build, resolved, spec_of
from tests.support.learners import config

NOW = 1000.0
"""The clock stands still while a test counts."""


class Watched:
    """A graph of two actors and a learner that do not run: the test counts for them."""

    def __init__(self) -> None:
        chosen = config(num_workers=2)
        self.graph, plan = build(chosen)
        spec = spec_of(chosen)
        self.context = VerdictContext.of(resolved(chosen, spec), plan, spec, self.graph)
        self.watch = RunWatch(self.graph, self.context)
        self.pids = {node.name: os.getpid() for node in self.graph.nodes}

    def count(self, name: str, **counters: float) -> None:
        node = next(node for node in self.graph.nodes if node.name == name)
        row = self.graph.counters.row(node.counter_row)
        for counter, value in counters.items():
            row[counter][0] = value

    def look(self, seconds: float = 10.0) -> dict[str, WorkerState]:
        """The states after so many seconds."""
        self.watch._looked -= seconds
        self.watch._changed -= seconds
        return {worker.name: worker for worker in self.watch.look(self.pids).workers}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr("sampleforge.run.reports.workers.monotonic", lambda: NOW)
    return Watched()


def test_states_follow_what_workers_count(watched: Watched) -> None:
    watched.count("actor 0", started_rows=3.0, heartbeat=NOW)
    states = watched.look()
    assert {each.state for each in states.values()} == {"starting"}
    assert states["actor 0"].detail == "3 envs started" and states["actor 0"].busy is None
    watched.count("actor 0", env_steps=1000, step_s=9.0, wait_s=1.0, heartbeat=NOW)
    watched.count("actor 1", env_steps=10, step_s=1.0, wait_s=9.0, heartbeat=NOW)
    watched.count("learner", wait_s=2.0, learn_s=8.0, trained_steps=500, heartbeat=inf)
    states = watched.look()
    assert (states["actor 0"].state, states["actor 1"].state) == ("running", "waiting")
    assert states["actor 0"].rate == pytest.approx(100.0, rel=0.01)
    assert states["actor 0"].busy == pytest.approx(0.9, abs=0.01)
    assert states["learner"].rate == pytest.approx(50.0, rel=0.01)
    found = watched.watch.look(watched.pids).verdict
    assert found is not None and found.part in ("simulator", "inference", "actors", "learner")


def test_silent_workers_are_stalled_but_a_learner_in_a_long_update_is_not(watched: Watched) -> None:
    watched.count("actor 0", env_steps=1, heartbeat=NOW - 25.0)
    watched.count("actor 1", env_steps=1, heartbeat=NOW)
    watched.count("learner", learn_s=1.0, trained_steps=1)
    watched.look()
    watched.count("actor 1", env_steps=2, heartbeat=NOW)
    states = watched.look(25.0)
    assert states["actor 0"].state == "stalled" and 25 <= states["actor 0"].seconds < 30
    assert states["actor 1"].state == "running"
    assert states["learner"].state == "running" and states["learner"].seconds >= 25


def test_a_successor_is_starting_until_it_works(watched: Watched) -> None:
    watched.count("actor 0", env_steps=100, heartbeat=NOW)
    assert watched.look()["actor 0"].state == "running"
    watched.count("actor 0", restarts=1, heartbeat=NOW + 30.0)
    state = watched.look()["actor 0"]
    assert (state.state, state.restarts) == ("starting", 1)
    watched.count("actor 0", env_steps=200, heartbeat=NOW)
    assert watched.look()["actor 0"].state == "running"


def test_under_a_quota_idle_is_what_it_allows_and_was_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the idle time of the machine's first cores, which others may use or leave idle."""
    monkeypatch.setattr(workers, "cgroup_idle_s", lambda: 12.5)
    monkeypatch.setattr(workers, "cores_to_pin", lambda: [])
    assert idle_s() == 12.5
    first = min(available_cores())
    monkeypatch.setattr(workers, "cores_to_pin", lambda: [first])
    monkeypatch.setattr(workers, "available_cores", lambda: [first])
    before = psutil.cpu_times(percpu=True)[first].idle
    assert before <= idle_s() <= psutil.cpu_times(percpu=True)[first].idle


def test_busy_replay_workers_limit_a_run_that_waits_for_them() -> None:
    context = Watched().context
    shares = {"env step": 0.2, "gather": 0.0, "forward": 0.2, "hand-over": 0.5, "bookkeeping": 0.1}
    shares |= {"insert": 0.3, "draw": 0.6, "replay idle": 0.1}
    shares |= {"batch": 0.1, "learn": 0.3, "publish": 0.0, "learner idle": 0.6}
    table = [StageTime(name, "actor", share, share, "") for name, share in shares.items()]
    found = verdict(table, 0.5, 2.0, context)
    assert (found.bottleneck, found.part) == ("draw", "replay") and "90%" in found.reason
    idle = [s for s in table if s.name not in ("insert", "draw")]
    assert verdict(idle, 0.5, 2.0, context).part != "replay"
    assert CounterRows([0], [], [1]).replays == ()


def shown(values: dict[str, float], state: RunState, width: int, height: int) -> list[str]:
    """The lines of the panel on a terminal of this size."""
    goal, written = Goal(10**6, None), io.StringIO()
    goal.observe(values)
    console = Console(width=width, height=height, file=written, force_terminal=True)
    console.print(LivePanel("runs/a", values, goal, state))
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in written.getvalue().splitlines()]


def state_of(actors: int) -> RunState:
    def worker(name: str, role: str, **more: object) -> WorkerState:
        values = {"state": "running", "seconds": 0.1, "busy": 0.93, "rate": 12_345.6}
        values |= {"unit": "env steps/s", "restarts": 0, "pid": 7, **more}
        return WorkerState(name, role, **values)  # type: ignore[arg-type]

    workers = [worker(f"actor {i}", "actor") for i in range(actors)]
    workers[1] = worker("actor 1", "actor", state="stalled", seconds=83.0, restarts=2)
    workers += [worker("learner", "learner", state="waiting", busy=0.2, unit="trained/s")]
    reason = "the sampler is behind: the learner waits 80%, and env step takes 70%"
    return RunState(tuple(workers), Verdict("env step", reason, ()))


@pytest.mark.parametrize("actors", [2, 40])
@pytest.mark.parametrize("policies", [0, 4, 30])
def test_the_panel_fits_any_terminal_and_grows_with_it(actors: int, policies: int) -> None:
    values = {"env_steps": 5e5, "wall_s": 100.0, "eval_return_mean": 1.0, "eval_return_std": 1.0}
    values |= {"env_steps_per_s": 5e3, "frames_per_s": 2e4, "return_mean": 1.0, "return_std": 0.5}
    for index in range(policies):
        own = {"return_mean": float(index), "loss": 0.125, "episodes": 3.0, "updates": 2.0}
        values |= {f"policy_{index}/{name}": value for name, value in own.items()}
    state = state_of(actors)
    small = shown(values, state, 80, 24)
    assert len(small) <= 24 and max(map(len, small)) <= 80
    assert any("simulator: env steps" in line for line in small)
    whole = "\n".join(small)
    if actors == 2 and policies < 30:
        assert "stalled 1:23" in whole and "2 times" in whole and "93%" in whole
    else:
        assert f"{actors} x actor" in whole
        assert f"{actors - 1} running, 1 stalled (actor 1)" in whole
    if policies == 30:
        assert "policy_29" in whole and re.search(r"\.\.\. \d+ more", whole)
    large = "\n".join(shown(values, state, 140, 80))
    assert len(large.splitlines()) <= 80
    assert all(f"actor {i} " in large for i in range(actors))
    assert all(f"policy_{i} " in large and "0.125" in large for i in range(policies))


def test_a_run_writes_the_states_of_its_workers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(
        AppoConfig(
            env="CartPole-v1",
            serial=True,
            quiet=True,
            train_for_env_steps=2000,
            report_interval=0.5,
            run_dir=str(run),
        )
    )
    plain = json.loads((run / "workers.json").read_text())
    assert {worker["role"] for worker in plain["workers"]} == {"actor", "learner"}
    assert plain["env_steps"] >= 2000 and set(plain) == {
        *("time", "env_steps", "wall_s", "limit", "workers"),
    }
    assert {worker["state"] for worker in plain["workers"]} <= {"running", "waiting"}
    assert not list(run.glob(".workers*")), "no temporary file is left"

"""Policy workers that are killed are replaced: open requests are answered, no recurrent state is
advanced twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algorithms.acting import Acted
from sampleforge.rollouts.requests import ACT, VALUE, InferenceRequests
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.counters import Counters, RestartBudget
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.builders import policy_seed
from sampleforge.topologies.graph import COUNTERS
from sampleforge.topologies.starts import ResumePoint
from sampleforge.workers.inference import RemoteInference
from sampleforge.workers.policy import PolicyWorker
from sampleforge.workers.worker import MODEL_TIMEOUT
from tests.support.kills import kills, live, watched
from tests.support.posts import some_post
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, until, worker
from tests.support.slots import some_slots, some_spec
from tests.support.variants import slow

STATE = 3
SPLITS = 2


class CountingPolicy:
    """Adds 1 to the recurrent state at each step; its actions say which life computed them."""

    version = 5

    def __init__(self, life: int) -> None:
        self.life = life

    def refresh(self) -> None:
        pass

    def begin(self, count: int) -> None:
        pass

    def compute(self, obs: Any, state: Any, first: Any, rows: Any) -> Acted[torch.Tensor]:
        count = len(state)
        column = torch.full((count,), float(self.life))
        return Acted(
            actions={"action": torch.full((count,), self.life)},
            extras={"log_prob": column, "value": column},
            state=state + 1,
        )

    def values(self, obs: Any, state: Any) -> torch.Tensor:
        np.testing.assert_array_equal(obs["x"], 3.0)
        np.testing.assert_array_equal(state, 7.0)
        return torch.full((len(obs["x"]),), float(self.life))


def slots_and_requests() -> tuple[TrajectorySlots, InferenceRequests]:
    shape = some_slots(4).shape
    recurrent = SlotShape(shape.rollout, shape.rows, some_spec("same_step"), STATE)
    requests = InferenceRequests(recurrent, SPLITS, [Wakeup()], [Wakeup()])
    return TrajectorySlots(4, recurrent), requests


def policy_worker(
    slots: TrajectorySlots, requests: InferenceRequests, policy: CountingPolicy
) -> PolicyWorker:
    made = PolicyWorker(
        0,
        lambda: policy,  # type: ignore[arg-type, return-value]
        slots,
        requests,
        some_post(),
        torch.device("cpu"),
    )
    made.start()
    return made


class World:
    """Two splits of an actor, of which the first asks for actions and the second for actions or the
    values of final observations, and what should come of it."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.slots, self.requests = slots_and_requests()
        self.inference = RemoteInference(self.requests, 0)
        self.inference.start()
        self.inference.state[...] = 7.0
        self.lives = 0

    def ask(self) -> None:
        self.inference.ask(0, slot=0, t=0)
        if self.kind == ACT:
            self.inference.ask(1, slot=1, t=2)
        else:
            self.inference.final_obs["x"][1] = 3.0
            self.inference.ask_final(1, slot=1, t=2)

    def new_worker(self) -> PolicyWorker:
        """The policy worker of another life."""
        self.lives += 1
        return policy_worker(self.slots, self.requests, CountingPolicy(self.lives))

    def answered(self, split: int) -> int | None:
        """The life that has answered the request of a split, None if it is open. Raises
        AssertionError if an answer is a mixture, or the recurrent state is wrong."""
        if not self.inference.is_answered(split):
            return None
        at = (0, 0) if split == 0 else (1, 2)
        if split == 1 and self.kind == VALUE:
            assert self.slots.final_value is not None
            columns = [self.slots.final_value[at]]
            np.testing.assert_array_equal(self.inference.state[split], 7.0)
        else:
            columns = [
                self.slots.actions["action"][at],
                *(c[at] for c in self.slots.extras.values()),
            ]
            np.testing.assert_array_equal(self.inference.state[split], 8.0)
            assert (self.slots.version[at] == CountingPolicy.version).all()
        lives = {int(life) for column in columns for life in column}
        assert len(lives) == 1, "a mixture of two answers"
        return lives.pop()

    def check_other_steps(self) -> None:
        """No other step of any slot was written. Raises AssertionError."""
        written = self.slots.version != 0
        written[0, 0] = written[1, 2] = False
        assert not written.any()


KINDS = pytest.mark.parametrize("kind", [ACT, VALUE], ids=["actions", "values"])


@pytest.mark.long
@KINDS
def test_the_successor_answers_what_is_open_from_the_same_state(kind: int) -> None:
    """Wherever the policy worker is killed, and wherever its successor is killed as well."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        worlds.append(World(kind))
        worlds[-1].ask()
        return worlds[-1].new_worker().step

    instants = 0
    for at in kills(new_life):
        instants += 1
        world = worlds.pop()
        by_first = [world.answered(split) for split in range(SPLITS)]
        assert set(by_first) <= {None, 1}
        live(world.new_worker().step, at)
        by_second = [world.answered(split) for split in range(SPLITS)]
        third = world.new_worker()
        third.recover()
        while third.step():
            pass
        for split in range(SPLITS):
            expected = by_first[split] or by_second[split] or 3
            assert world.answered(split) == world.answered(split) == expected
        world.check_other_steps()
    assert instants > 30, "instants"


@KINDS
def test_an_actor_finds_an_answer_whole_at_every_store_of_the_policy_worker(kind: int) -> None:
    world = World(kind)
    world.ask()
    seen: list[list[int | None]] = []
    watched(
        world.new_worker().step,
        lambda: seen.append([world.answered(split) for split in range(SPLITS)]),
    )
    assert seen[0] == [None, None] and seen[-1] == [1, 1]


@KINDS
def test_a_request_is_seen_whole_at_every_store_of_the_actor(kind: int) -> None:
    """A policy worker that looks between any two stores answers each request once."""
    world = World(kind)
    worker = world.new_worker()
    watched(world.ask, worker.step)
    assert [world.answered(split) for split in range(SPLITS)] == [1, 1]
    world.check_other_steps()
    for split in range(SPLITS):  # the next step, from the state that came back
        world.inference.ask(split, slot=2 + split, t=1)
    worker.step()
    assert all(map(world.inference.is_answered, range(SPLITS)))
    advanced = [9.0, 9.0 if kind == ACT else 8.0]
    assert [state.min() for state in world.inference.state] == advanced
    assert [state.max() for state in world.inference.state] == advanced


@pytest.mark.long
@KINDS
def test_an_actor_that_is_killed_at_any_store_leaves_no_request_behind(kind: int) -> None:
    """Its successor begins from a state of its own, after the answers to its predecessor."""
    worlds: list[World] = []

    def new_life() -> Callable[[], object]:
        worlds.append(World(kind))
        return worlds[-1].ask

    instants = 0
    for _ in kills(new_life):
        instants += 1
        world = worlds.pop()
        worker = world.new_worker()
        while worker.step():
            pass
        world.check_other_steps()
        world.inference = RemoteInference(world.requests, 0)
        world.inference.start()
        world.inference.state[...] = 7.0
        world.ask()
        assert worker.step() and not worker.step()
        assert [world.answered(split) for split in range(SPLITS)] == [1, 1]
    assert instants > 8, "instants"


def test_each_life_draws_other_actions() -> None:
    budget, seeds = RestartBudget(1, 3), []
    for _ in range(4):
        seeds.append(policy_seed(0, ResumePoint(3), budget.life))
        budget.begin(0)
    assert len(set(seeds)) == 4 and seeds[0] == policy_seed(0, ResumePoint(3))


@pytest.mark.multiprocess(timeout=90)
@pytest.mark.parametrize("core", [slow("none"), "gru"])
def test_killed_policy_workers_are_replaced(start_cli: StartCli, tmp_path: Path, core: str) -> None:
    run = tmp_path / "run"
    process = start_cli(
        *[
            "train",
            "appo",
            "--env",
            "tests.support.envs:CodeEnv",
            "--device",
            "cpu",
            "--inference",
            "worker",
        ],
        *f"--num-policy-workers 2 --num-workers 2 --async-rl --model.core {core}".split(),
        *[
            "--report-interval",
            "0.3",
            "--run-dir",
            "run",
            "--seed",
            "1",
            "--debug",
            "--rollout",
            "8",
        ],
        *[
            "--num-envs-per-worker",
            "4",
            "--batch-size",
            "128",
            "--train-for-env-steps",
            "100000000",
        ],
    )

    def until_updates(least: float) -> None:
        def reached() -> bool:
            metrics = run / "metrics.jsonl"
            reported = metrics.exists() and "\n" in metrics.read_text()
            return bool(reported and last_report(run).get("updates", 0) > least)

        until(reached, process)

    def until_restarted(count: int) -> None:
        until(lambda: last_report(run).get("restarts") == count, process)

    until_updates(10)
    for restarts, number in enumerate((1, 0, 1), 1):
        worker(process, f"sampleforge: policy {number}").kill()
        until_restarted(restarts)
        until_updates(last_report(run)["updates"] + 10)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 143, stderr
    assert "policy 0 was ended by signal SIGKILL" in stderr and "3 of 3 times" in stderr
    assert json.loads((run / "summary.json").read_text())["restarts"] == 3
    assert summary(run)["status"] == "interrupted"


def test_a_policy_worker_that_stops_while_it_makes_its_model_has_a_time_limit() -> None:
    """It may compile the model, but a worker that stands still there does not hold the run."""
    slots, requests = slots_and_requests()
    counters, seen = Counters(COUNTERS, 1), []

    def make_policy() -> CountingPolicy:
        seen.append(counters.row(0)["heartbeat"][0])
        return CountingPolicy(0)

    made = PolicyWorker(
        0,
        make_policy,  # type: ignore[arg-type]
        slots,
        requests,
        some_post(counters=counters),
        torch.device("cpu"),
    )
    begun = monotonic()
    made.start()
    assert begun < seen[0] <= monotonic() + MODEL_TIMEOUT
    assert counters.row(0)["heartbeat"][0] <= monotonic()

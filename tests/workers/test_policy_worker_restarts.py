"""Policy workers that are killed are replaced: open requests are answered, no recurrent state is
advanced twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.algos.policy import PolicyOutput
from sampleforge.rollouts.requests import InferenceRequests
from sampleforge.rollouts.slots import SlotShape, TrajectorySlots
from sampleforge.shared.counters import Counters
from sampleforge.shared.wakeup import Wakeup
from sampleforge.topologies.builders import ResumePoint, policy_seed
from sampleforge.topologies.graph import COUNTERS
from sampleforge.workers.inference import RemoteInference
from sampleforge.workers.policy import PolicyWorker
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, until, worker
from tests.support.slots import some_slots

STATE = 3
SPLITS = 2


class Killed(BaseException):
    """What a process that is killed does not live to see."""


class CountingPolicy:
    """Adds 1 to the recurrent state at each step; its actions say which life computed them."""

    version = 5

    def __init__(self, life: int) -> None:
        self.life = life

    def refresh(self) -> None:
        pass

    def act(self, obs: Any, state: Any, first: Any, rows: Any) -> PolicyOutput:
        count = state.shape[0] * state.shape[1] if state.dim() == 3 else len(state)
        column = torch.full((count,), float(self.life))
        return PolicyOutput(
            actions={"action": torch.full((count,), self.life)},
            extras={"log_prob": column, "value": column},
            state=state.reshape(count, STATE) + 1,
        )


def slots_and_requests() -> tuple[TrajectorySlots, InferenceRequests]:
    shape = some_slots(4).shape
    recurrent = SlotShape(shape.rollout, shape.rows, shape.spec, STATE)
    requests = InferenceRequests(recurrent, SPLITS, [Wakeup()], [Wakeup()])
    return TrajectorySlots(4, recurrent), requests


def policy_worker(slots: TrajectorySlots, requests: InferenceRequests, life: int) -> PolicyWorker:
    made = PolicyWorker(
        0,
        lambda: CountingPolicy(life),  # type: ignore[arg-type, return-value]
        slots,
        requests,
        Wakeup(),
        Counters(COUNTERS, 1),
        0,
        torch.device("cpu"),
    )
    made.start()
    return made


@pytest.mark.parametrize("written", ["nothing", "all but the answer", "answer of the first split"])
def test_the_successor_answers_what_was_open_from_the_same_state(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, requests = slots_and_requests()
    inference = RemoteInference(requests, 0)
    inference.start()
    inference.state[...] = 7.0
    for split in range(SPLITS):
        inference.ask(split, slot=split, t=0)
    first = policy_worker(slots, requests, 1)
    answer = requests.answer

    def answer_some(actors: Any, splits: Any) -> None:
        if written == "answer of the first split":
            answer(actors[:1], splits[:1])
        raise Killed

    def act_not(actors: Any, splits: Any) -> None:
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(requests, "answer", answer_some)
        if written == "nothing":
            killed.setattr(first, "_act", act_not)
        with pytest.raises(Killed):
            first.step()
    second = policy_worker(slots, requests, 2)
    second.recover()
    assert second.step()
    assert not second.step(), "all is answered"
    for split in range(SPLITS):
        assert inference.is_answered(split) and inference.is_answered(split)
        answered = written == "answer of the first split" and split == 0
        assert (slots.actions["action"][split, 0] == (1 if answered else 2)).all()
        np.testing.assert_array_equal(inference.state[split], 8.0)


def test_each_life_draws_other_actions() -> None:
    class Lives:
        def __init__(self, life: int) -> None:
            self._life = life

        def life(self, worker: int) -> int:
            return self._life

    seeds = [policy_seed(0, ResumePoint(3), Lives(life)) for life in range(4)]
    assert len(set(seeds)) == 4 and seeds[0] == policy_seed(0, ResumePoint(3))


@pytest.mark.multiprocess(timeout=90)
@pytest.mark.parametrize("core", ["none", "gru"])
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

    def until_updates(least: float) -> float:
        def reached() -> bool:
            metrics = run / "metrics.jsonl"
            reported = metrics.exists() and "\n" in metrics.read_text()
            return bool(reported and last_report(run).get("updates", 0) > least)

        until(reached, process)
        return float(last_report(run)["updates"])

    updates = until_updates(10)
    for number in (1, 0, 1):
        worker(process, f"sampleforge: policy {number}").kill()
        updates = until_updates(updates + 10)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 143, stderr
    assert "policy 0 was ended by signal SIGKILL" in stderr and "3 of 3 times" in stderr
    assert json.loads((run / "summary.json").read_text())["restarts"] == 3
    assert summary(run)["status"] == "interrupted"

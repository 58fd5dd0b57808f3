"""Learners of Ape-X that are killed are replaced: the policy version never goes back, and the
requests that were under way are served."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sampleforge.distributed.group import RankLost
from sampleforge.replay.exchange import SAMPLE, SampleRelay, SampleRequests
from sampleforge.replay.sample_source import ReadySample
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.replay_learner import ReplayLearnerWorker
from tests.support.processes import StartCli
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.variants import slow


def test_a_new_learner_finds_the_requests_that_are_on_no_way() -> None:
    requests = SampleRequests(5, 4, [Wakeup(), Wakeup()], Wakeup())
    assert requests.spare() == [0, 1, 2, 3, 4]
    requests.ask(0, 3, SAMPLE)
    requests.ask(1, 1, SAMPLE)
    requests.ask(1, 4, SAMPLE)
    assert requests.spare() == [0, 2]
    assert requests.asked(1) == [1, 4]
    requests.answer(1, 1)
    assert requests.spare() == [0, 2], "answered, and not taken"
    assert requests.take_answered(1) == 1
    assert requests.spare() == [0, 1, 2], "lost with the learner that had taken it"
    assert requests.asked(1) == [4] and requests.asked(0) == [3]


def test_an_answer_that_is_not_complete_is_found_and_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shard is killed between the two stores of an answer; the learner goes on, or is killed
    as well."""
    requests = SampleRequests(3, 4, [Wakeup()], Wakeup())
    for request in (0, 1, 2):
        requests.ask(0, request, SAMPLE)
    with monkeypatch.context() as patch:
        patch.setattr(requests._to_shard, "pop", lambda shard: None)
        requests.answer(0, 0)
    assert requests.spare() == [], "0 is answered"
    assert requests.take_answered(0) == 0
    assert requests.spare() == [0], "the learner was killed"
    requests.ask(0, 0, SAMPLE)
    assert requests.spare() == []
    requests.take_over_shard(0)
    assert requests.asked(0) == [1, 2, 0]
    for request in (1, 2, 0):
        requests.answer(0, request)
    assert requests.asked(0) == []


class Answers:
    """A sample source that counts what goes back."""

    batch = 4

    def __init__(self) -> None:
        self.back: list[int] = []
        self.given = iter([ReadySample(0, 7), ReadySample(0, 8)])

    def start(self, life: int) -> None:
        pass

    def gather(self) -> bool:
        return False

    def take(self) -> ReadySample | None:
        return next(self.given, None)

    def done(self, sample: ReadySample, errors: Any) -> None:
        self.back.append(sample.request)


@pytest.mark.parametrize("lost_in", ["update", "after"])
def test_a_sample_goes_back_once_when_another_learner_is_lost(lost_in: str) -> None:
    def lose(*_: Any) -> Any:
        raise RankLost("another learner was killed")

    def update(request: int, progress: float) -> None:
        if lost_in == "update":
            lose()

    source = Answers()
    progress: Any = SimpleNamespace(
        fraction=0.0, counters=SimpleNamespace(row=lambda row: {"restarts": np.zeros(1)})
    )
    metrics: Any = SimpleNamespace(start=lambda: None, add_late=lambda items: None)
    unused: Any = None
    learner = ReplayLearnerWorker(
        lambda: unused,
        lambda learner: update,  # type: ignore[arg-type, return-value]
        source,  # type: ignore[arg-type]
        unused,
        progress,
        unused,
        Wakeup(),
        0,
        metrics,
        publish_interval=1,
        threads=1,
        after_update=lose if lost_in == "after" else lambda: None,
    )
    learner.start()
    with pytest.raises(RankLost):
        learner.step()
    learner.begin_again()
    assert source.back == [7]
    assert learner._next is None


def test_what_was_relayed_before_a_new_group_is_left_out() -> None:
    relay = SampleRelay([Wakeup(), Wakeup()], 4)
    relay.send(2, 0.1)
    assert relay.take(1) == (2, 0.1)
    relay.send(3, 0.2)
    relay.forget()
    relay.send(3, 0.5)
    assert relay.take(1) == (3, 0.5) and relay.take(1) is None
    assert relay.take(2) == (3, 0.5) and relay.take(2) is None


def kill_one(process: subprocess.Popen[str], run: Path, name: str, life: int) -> None:
    """Kill a learner in its ``life``; the run goes on, and no update is undone."""
    before = last_report(run)
    worker(process, f"sampleforge: {name}").kill()
    until(lambda: last_report(run).get("restarts_learner") == life, process)
    seen = last_report(run)
    assert seen["updates"] >= before["updates"]
    until(lambda: last_report(run)["updates"] > seen["updates"] + 20, process)
    until(lambda: last_report(run)["env_steps"] > seen["env_steps"] + 500, process)


@pytest.mark.multiprocess(timeout=120)
@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["--num-replay-shards", "2"], ["learner", "learner"]),
        slow(["--model.core", "gru"], ["learner"]),
        slow(["--num-learners", "2"], ["learner 1", "learner 0"]),
    ],
    ids=["two shards", "sequences", "two learners"],
)
def test_a_killed_learner_is_replaced_in_a_run(
    start_cli: StartCli, tmp_path: Path, more: list[str], names: list[str]
) -> None:
    run = tmp_path / "run"
    process = start_cli(
        *train("CartPole-v1", "--learning-starts", "500", *more, "--debug", algo="apex")
    )
    until_trained(process, run)
    for life, name in enumerate(names, 1):
        kill_one(process, run, name, life)
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert f"it is restarted ({len(names)} of 3 times)" in stderr
    assert "from update" in stderr
    found = summary(run)
    assert found["restarts_by_role"]["learner"] == len(names) and found["env_steps"] > 500
    again = start_cli(*train("CartPole-v1", "--learning-starts", "500", *more, algo="apex"))
    until(lambda: last_report(run)["updates"] > found["updates"], again)

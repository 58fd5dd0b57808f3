"""Learners of Ape-X that are killed are replaced: the policy version never goes back, and the
requests that were under way are served."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.peers.group import RankLost
from sampleforge.replay.exchange import SAMPLE, SampleRelay, SampleRequests
from sampleforge.replay.sample_batches import ChosenSamples, ReadySample
from sampleforge.shared.wakeup import Wakeup
from sampleforge.workers.learner import LearnerSettings, LearnerWorker
from sampleforge.workers.worker import Post
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
    """Where samples come from; it counts what goes back."""

    def __init__(self) -> None:
        self.back: list[int] = []
        self.given = iter([ReadySample(0, 7), ReadySample(0, 8)])

    def gather(self) -> bool:
        return False

    def take(self) -> ReadySample | None:
        return next(self.given, None)

    def done(self, sample: ReadySample, errors: Any) -> None:
        self.back.append(sample.request)


class Batches:
    """Gives the `ChosenSamples` of such answers."""

    device = torch.device("cpu")

    def __init__(self, answers: Answers, read: Callable[[], object]) -> None:
        self.answers = answers
        self.read = read

    def source(self, *_: Any) -> ChosenSamples:
        reader: Any = SimpleNamespace(
            read=lambda choice: self.read(),
            late=0,
            forget=lambda: None,
            errors_of_all=lambda errors: errors,
        )
        metrics: Any = SimpleNamespace(add_late=lambda items: None)
        return ChosenSamples(self.answers, reader, metrics, None, Wakeup())  # type: ignore[arg-type]

    def take_over(self) -> None:
        pass


@pytest.mark.parametrize("lost_in", ["update", "after"])
def test_a_sample_goes_back_once_when_another_learner_is_lost(lost_in: str) -> None:
    def lose() -> Any:
        raise RankLost("another learner was killed")

    answers = Answers()
    progress: Any = SimpleNamespace(
        fraction=0.0, counters=SimpleNamespace(row=lambda row: {"batch_s": np.zeros(1)})
    )
    unused: Any = None
    alone: Any = SimpleNamespace(version=0, averaging=SimpleNamespace(solo=True))
    learner = LearnerWorker(
        lambda: alone,
        Batches(answers, lose if lost_in == "update" else lambda: None),
        LearnerSettings(Post(0, Wakeup(), progress), unused, None, threads=1),
        after_update=lose if lost_in == "after" else lambda: None,
    )
    learner.start()
    with pytest.raises(RankLost):
        learner.step()
    learner.abandon()
    learner.begin_again()
    assert answers.back == [7]
    with pytest.raises(RankLost):
        learner.step()
    learner.begin_again()
    assert answers.back == [7, 8]


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

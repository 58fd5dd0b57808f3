"""Workers in processes: one that does not answer the driver is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from sampleforge.runners.processes import LivesWatch
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import build, running


@pytest.mark.multiprocess(timeout=90)
def test_a_learner_that_is_stopped_for_good_is_replaced_and_its_successor_answers(
    tmp_path: Path,
) -> None:
    graph, _ = build(config(max_worker_restarts=1))
    learner = graph.groups[0].learner
    with running(graph, tmp_path) as runner:
        deadline = monotonic() + 60
        while graph.counters.total("updates") < 5:
            runner.poll(0.05)
            assert monotonic() < deadline
        stopped = runner.pids()[learner.name]
        os.kill(stopped, signal.SIGSTOP)
        assert isinstance(runner.ask(learner, "metrics", None, 5.0), dict)
        assert runner.pids()[learner.name] != stopped
        updates = graph.counters.total("updates")
        while graph.counters.total("updates") < updates + 5:
            runner.poll(0.05)
            assert monotonic() < deadline + 25
    assert graph.counters.total("restarts") == 1


@pytest.mark.multiprocess(timeout=90)
def test_a_learner_that_does_not_answer_ends_the_run_where_none_is_replaced(tmp_path: Path) -> None:
    graph, _ = build(config(max_worker_restarts=0))
    learner = graph.groups[0].learner
    with running(graph, tmp_path) as runner:
        deadline = monotonic() + 60
        while graph.counters.total("updates") < 5:
            runner.poll(0.05)
            assert monotonic() < deadline
        os.kill(runner.pids()[learner.name], signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="learner did not answer 'metrics' within 1 s"):
            runner.ask(learner, "metrics", None, 1.0)


def has_come(descriptor: int) -> bool:
    """Whether there was a byte to read."""
    try:
        return bool(os.read(descriptor, 1))
    except BlockingIOError:
        return False


class FakeLife:
    """A life of a worker whose process is a pair of pipes: what it sends, and its end."""

    def __init__(self) -> None:
        self.sends, self.ends = os.pipe(), os.pipe()
        self.is_over, self.looks = False, 0
        for descriptor in self.descriptors:
            os.set_blocking(descriptor, False)

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.sends[0], self.ends[0]

    def look(self) -> None:
        self.looks += 1
        sent, self.is_over = map(has_come, self.descriptors)
        assert sent or self.is_over

    def close(self) -> None:
        for descriptor in (*self.sends, *self.ends):
            os.close(descriptor)


@pytest.mark.parametrize("count", [8, 256])
def test_a_driver_looks_at_the_workers_that_have_something_to_say_only(count: int) -> None:
    """However many others there are: this is done many times a second."""
    lives = [FakeLife() for _ in range(count)]
    watch: Any = LivesWatch()
    for life in lives:
        watch.add(life)
    sends, ends = lives[3], lives[-1]
    try:
        begun = monotonic()
        watch.look(0.1)
        assert monotonic() - begun > 0.09
        assert sum(life.looks for life in lives) == 0
        os.write(sends.sends[1], b"x")
        os.write(ends.ends[1], b"x")
        os.write(ends.sends[1], b"x")
        for _ in range(3):
            watch.look(60.0 if not sends.looks else 0.0)
        assert [life.looks for life in (sends, ends)] == [1, 1]
        assert sum(life.looks for life in lives) == 2
        watch.remove(sends)
        os.write(sends.sends[1], b"x")
        watch.look(0.0)
        assert sum(life.looks for life in lives) == 2
    finally:
        watch.close()
        for life in lives:
            life.close()


def config(max_worker_restarts: int) -> AppoConfig:
    return AppoConfig(
        env="CartPole-v1",
        num_workers=1,
        num_envs_per_worker=4,
        async_rl=True,
        batch_size=128,
        rollout=32,
        max_worker_restarts=max_worker_restarts,
    )

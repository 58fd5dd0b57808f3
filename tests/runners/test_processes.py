"""Workers in processes: one that does not answer the driver is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic

import pytest

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
        assert isinstance(runner.ask(learner, "metrics", None, 10.0), dict)
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

"""The window of episodes over which metrics are averaged."""

from __future__ import annotations

from typing import Any

import pytest

from sampleforge.run.reports.statistics import RunStatistics
from sampleforge.shared.records import EpisodeRecord
from sampleforge.topologies.config import AppoConfig
from tests.support.graphs import build


def statistics(window: int, earlier: Any = None) -> RunStatistics:
    graph, _ = build(AppoConfig(env="tests.support.envs:CodeEnv", num_workers=1))
    return RunStatistics(graph, {"policy": earlier} if earlier else {}, window)


def test_means_are_over_the_window_and_the_best_needs_a_full_one() -> None:
    ours = statistics(4)
    for number in range(1, 11):
        ours.take_episodes([EpisodeRecord(0, 0, 0, float(number), 2 * number)])
        ours.take_episode_stats({"score": float(number)})
        scalars = ours.scalars({"policy": {}})
        last = range(max(1, number - 3), number + 1)
        assert scalars["return_mean"] == pytest.approx(sum(last) / len(last))
        assert scalars["length_mean"] == pytest.approx(2 * sum(last) / len(last))
        assert scalars["env_score"] == pytest.approx(sum(last) / len(last))
        assert ("return_best" in scalars) == (number >= 4)
        rated = ours.policies[0].rating()["return_mean"]
        assert rated == (pytest.approx(sum(last) / 4) if number >= 4 else None)
    assert scalars["return_best"] == 8.5 and scalars["episodes"] == 10


def test_a_resumed_run_may_have_another_window() -> None:
    ours = statistics(6)
    for number in range(1, 7):
        ours.take_episodes([EpisodeRecord(0, 0, 0, float(number), 1)])
    state = ours.state(ours.policies[0])
    assert statistics(2, state).return_mean == 5.5
    assert statistics(100, state).return_mean == 3.5

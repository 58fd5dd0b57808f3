"""The statistics of a run: the first episodes of which the short ones end first, and the window
over which metrics are averaged."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sampleforge.api import train
from sampleforge.models.config import ModelConfig
from sampleforge.run.callback import Callback
from sampleforge.run.reports.statistics import PATIENCE, FirstEpisodes, RunStatistics
from sampleforge.run.session import Session
from sampleforge.shared.records import EpisodeRecord, Evaluation
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig
from tests.support.apex_graphs import apex_config, build_apex
from tests.support.graphs import build

LONG = 60


class Goal(gym.Env[Any, Any]):
    """One episode in three reaches the goal, after 5 steps: a return of 1. The others end after
    `LONG` steps without one, and no time limit is registered."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps, self.finds = 0, self.np_random.random() < 1 / 3
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        found = self.finds and self.steps == 5
        over = found or self.steps == LONG
        return np.zeros(2, np.float32), float(found), over, False, {}


def trained(folder: Path, steps: int, make: Any = AppoConfig, **more: Any) -> dict[str, Any]:
    setting: dict[str, Any] = {
        "env": f"{__name__}:Goal",
        "num_envs_per_worker": 32,
        "serial": True,
        "quiet": True,
        "seed": 5,
        "device": "cpu",
        "rollout": 8,
        "report_interval": 0.02,
        "train_for_env_steps": steps,
        "run_dir": str(folder),
        "model": ModelConfig(hidden_sizes=(8,)),
    }
    setting |= {"num_ranks": 1} if make is DdppoConfig else {"num_workers": 1}
    if make is ApexConfig:
        setting |= {"learning_starts": 100, "replay_capacity": 5000, "rollout": 16}
    train(make(**{**setting, **more}))
    return dict(json.loads((folder / "summary.json").read_text()))


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("make", [AppoConfig, ApexConfig, DdppoConfig])
def test_the_mean_of_a_run_is_not_that_of_its_short_episodes(tmp_path: Path, make: Any) -> None:
    """Before it is complete, the mean of what has ended is 1; the truth is 1/3."""
    early = trained(tmp_path / "early", 32 * (LONG - 20), make)
    assert early["return_mean"] == 1.0 and early["return_is_early"]
    assert 2 <= early["return_episodes"] <= early["episodes"] and early["return_best"] is None
    seen = reports(tmp_path / "early")
    assert not any("return_mean" in report for report in seen)
    assert seen[-1]["return_mean_early"] == 1.0
    later = trained(tmp_path / "later", 32 * 3 * LONG, make)
    assert not later["return_is_early"] and later["return_episodes"] >= 10
    assert later["return_mean"] == pytest.approx(1 / 3, abs=0.25)
    means = [r["return_mean"] for r in reports(tmp_path / "later") if "return_mean" in r]
    assert max(means) < 0.7 and "return_mean_early" not in reports(tmp_path / "later")[-1]


@pytest.mark.long
def test_a_stop_condition_does_not_believe_the_first_episodes(tmp_path: Path) -> None:
    found = trained(tmp_path, 32 * 2 * LONG, stop=("return_mean>=0.8",))
    assert found["stopped_by"] == f"env_steps>={32 * 2 * LONG}"


@pytest.mark.long
def test_a_resumed_run_does_not_begin_with_its_short_episodes(tmp_path: Path) -> None:
    before = trained(tmp_path, 32 * 6 * LONG)
    after = trained(tmp_path, before["env_steps"] + 32 * (LONG - 20))
    assert after["episodes"] > before["episodes"] + 5
    assert after["return_mean_early"] == reports(tmp_path)[-1]["return_mean_early"] == 1.0
    assert not after["return_is_early"] and "return_mean_early" not in before
    assert after["return_mean"] == pytest.approx(before["return_mean"], abs=0.15)


def record(row: int, ret: float) -> EpisodeRecord:
    return EpisodeRecord(0, 0, row, ret, 1)


def test_as_many_episodes_of_each_row_count_until_the_window_is_full() -> None:
    first = FirstEpisodes(rows=3, window=6)
    quick = [first.take([record(0, float(i))]) for i in range(4)]
    assert quick == [[]] * 4 and first.take([record(2, 20.0)]) == []
    assert first.take([record(1, 10.0)]) == [[record(0, 0.0)], [record(1, 10.0)], [record(2, 20.0)]]
    assert first.take([record(2, 21.0)]) == []
    assert len(first.take([record(1, 11.0)])) == 3, "the window is full"
    assert first.waiting == [] and first.take([record(1, 12.0)]) == [[record(1, 12.0)]]


def test_a_row_without_an_end_is_not_waited_for_for_ever() -> None:
    first = FirstEpisodes(rows=2, window=4)
    counted = [first.take([record(0, float(i))]) for i in range(PATIENCE * 4 + 1)]
    assert counted[:-2] == [[]] * (PATIENCE * 4 - 1)
    assert len(counted[-2]) == PATIENCE * 4 and len(counted[-1]) == 1
    several, rows = FirstEpisodes(rows=3, window=4), (0, 1)
    ended = [record(rows[i % 2], float(i)) for i in range(PATIENCE * 4)]
    (all_at_once,) = [found for each in ended if (found := several.take([each]))]
    assert all_at_once == [[each] for each in ended], "in the order in which they ended"


def test_episodes_that_wait_count_when_the_run_is_resumed() -> None:
    graph, _ = build(AppoConfig(env="tests.support.envs:CodeEnv", num_workers=1))
    ours = RunStatistics(graph, {}, 10, rows=2)
    ours.take_episodes([record(0, 1.0), record(1, 3.0), record(0, 5.0)])
    assert ours.return_mean == 2.0
    state = ours.state(ours.policies[0])
    assert state["returns"] == [1.0, 3.0, 5.0] and ours.return_mean == 2.0
    assert RunStatistics(graph, {"policy": state}, 10, rows=2).return_mean == 3.0


def test_what_is_reported_of_an_episode_counts_with_its_return() -> None:
    """Also if it comes after the record, and what waits counts when the run is resumed."""
    graph, _ = build(AppoConfig(env="tests.support.envs:CodeEnv", num_workers=1))
    ours = RunStatistics(graph, {}, 10, rows=2)

    def reported(statistics: RunStatistics) -> tuple[float | None, ...]:
        scalars = statistics.scalars({"policy": {}})
        return tuple(map(scalars.get, ("return_mean", "env_a", "custom_b_mean")))

    def of(number: int) -> dict[str, float]:
        return {"env_a": 10.0 * number, "custom_b": 100.0 * number}

    for number in (1, 2):
        ours.take_stats(number, of(number))
    ours.take_episodes([record(0, 1.0)._replace(stats=1), record(0, 2.0)._replace(stats=2)])
    assert reported(ours) == (None, None, None)
    ours.take_episodes([record(1, 3.0)._replace(stats=3)])
    assert reported(ours) == (2.0, 10.0, 100.0)
    ours.take_stats(3, of(3))
    assert reported(ours) == (2.0, 20.0, 200.0)
    state = ours.state(ours.policies[0])
    assert reported(RunStatistics(graph, {"policy": state}, 10, rows=2)) == (2.0, 20.0, 200.0)
    assert reported(ours) == (2.0, 20.0, 200.0)
    ours.take_episodes([record(1, 6.0)._replace(stats=4)])
    ours.take_stats(4, of(4))
    assert reported(ours) == (3.0, 25.0, 250.0)


def test_what_is_lost_on_the_way_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sampleforge.run.reports.statistics.MOST_LATE", 3)
    ours = statistics(10)
    ours.take_episodes([record(0, 1.0)._replace(stats=number) for number in range(1, 6)])
    for number in range(1, 6):
        ours.take_stats(number, {"env_a": float(number)})
    assert ours.scalars({"policy": {}})["env_a"] == 4.0, "of the newest three"


def test_what_rows_report_that_explore_more_does_not_count() -> None:
    graph = build_apex(
        apex_config(env="CartPole-v1", num_workers=1, num_splits=1, num_envs_per_worker=6)
    )[0]
    ours = RunStatistics(graph, {}, 10)
    for number, row in enumerate(range(6), 1):
        ours.take_stats(number, {"env_a": float(row)})
        ours.take_episodes([record(row, float(row))._replace(stats=number)])
    scalars = ours.scalars({"policy": {}})
    assert scalars["env_a"] == scalars["return_mean"] == 4.5


class Logging(gym.Env[Any, Any]):
    """Episodes of 3 to 8 steps; each appends a line with the process that has played it to
    ``path``."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, path: str) -> None:
        self.path, self.steps, self.length = path, 0, 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, 3 + int(self.np_random.integers(6))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == self.length
        if ended:
            with Path(self.path).open("a") as file:
                file.write(f"{os.getpid()}\n")
        return np.zeros(2, np.float32), 1.0, ended, False, {}


class Actors(Callback):
    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.before = self.at_end = 0

    def on_start(self, session: Session) -> None:
        self.before = session.statistics.episodes

    def on_episode_record(self, session: Session, record: EpisodeRecord) -> None:
        assert not session._has_ended, "what a hook may call needs the workers"

    def on_checkpoint(self, session: Session, env_steps: int) -> None:
        self.at_end = session.statistics.episodes

    def on_report(self, session: Session, report: Any) -> None:
        self.pids |= {pid for name, pid in session.pids().items() if name.startswith("actor")}


@pytest.mark.parametrize("cls", [AppoConfig, ApexConfig])
def test_episodes_of_the_last_moments_are_counted(tmp_path: Path, cls: Any) -> None:
    """Those until the actors have ended; a resumed run goes on from those of the checkpoint. The
    rates of the summary are over the same seconds as its ``wall_s``."""
    path, run = tmp_path / "episodes", tmp_path / "run"
    small: dict[str, Any] = {"env_kwargs": {"path": str(path)}, "num_envs_per_worker": 4}
    parts: list[Actors] = []
    for steps in (3000, 6000):
        path.write_text("")
        actors = Actors()
        config = cls(
            env=f"{__name__}:Logging", num_workers=2, run_dir=str(run), train_for_env_steps=steps
        )
        summary = train(replace(config, **small), [actors]).summary
        played = sum(int(line) in actors.pids for line in path.read_text().splitlines())
        assert summary["episodes"] - actors.before == played > 100
        parts.append(actors)
        if len(parts) == 1:
            rate = summary["env_steps"] / summary["wall_s"]
            assert summary["env_steps_per_s"] == pytest.approx(rate, rel=0.01)
    assert parts[1].before == parts[0].at_end > 0


def statistics(window: int, earlier: Any = None) -> RunStatistics:
    graph, _ = build(AppoConfig(env="tests.support.envs:CodeEnv", num_workers=1))
    return RunStatistics(graph, {"policy": earlier} if earlier else {}, window)


def test_means_are_over_the_window_and_the_best_needs_a_full_one() -> None:
    ours = statistics(4)
    for number in range(1, 11):
        ours.take_stats(number, {"env_score": float(number)})
        ours.take_episodes([EpisodeRecord(0, 0, 0, float(number), 2 * number, stats=number)])
        scalars = ours.scalars({"policy": {}})
        last = range(max(1, number - 3), number + 1)
        assert scalars["return_mean"] == pytest.approx(sum(last) / len(last))
        assert scalars["length_mean"] == pytest.approx(2 * sum(last) / len(last))
        assert scalars["env_score"] == pytest.approx(sum(last) / len(last))
        assert ("return_best" in scalars) == (number >= 4)
        rated = ours.policies[0].rating()["return_mean"]
        assert rated == (pytest.approx(sum(last) / 4) if number >= 4 else None)
    assert scalars["return_best"] == 8.5 and scalars["episodes"] == 10


def test_a_metric_of_episodes_that_is_not_finite_is_told_once_by_name() -> None:
    ours = statistics(window=3)
    for number, (fuel, size) in enumerate([(1.0, 1.0), (float("nan"), 2.0), (3.0, 3.0)], 1):
        ours.take_stats(number, {"env_fuel": fuel, "custom_size": size})
        ours.take_episodes([EpisodeRecord(0, 0, 0, 1.0, 5, stats=number)])
    (text,) = ours.nonfinite_metrics()
    assert text.startswith("env_fuel is not finite in 1 of the last 3 episodes that have it")
    assert "the mean over them is null" in text and "leave it out of the episodes" in text
    ours.take_stats(4, {"env_fuel": 1.0, "custom_size": float("inf")})
    ours.take_episodes([EpisodeRecord(0, 0, 0, 1.0, 5, stats=4)])
    (text,) = ours.nonfinite_metrics()
    assert text.startswith("custom_size is not finite in 1 of the last 3")
    assert not ours.nonfinite_metrics()


def test_a_resumed_run_may_have_another_window() -> None:
    ours = statistics(6)
    for number in range(1, 7):
        ours.take_episodes([EpisodeRecord(0, 0, 0, float(number), 1)])
    state = ours.state(ours.policies[0])
    assert statistics(2, state).return_mean == 5.5
    assert statistics(100, state).return_mean == 3.5


def test_an_evaluation_of_weights_that_were_replaced_rates_nothing() -> None:
    """Also one that ends after the copy; reports have it all the same."""
    (policy,) = statistics(4).policies

    def evaluated(version: int) -> Evaluation:
        return Evaluation(version, 100 * version, 10, float(version), 0.0, 0.0, 0.0, 1.0)

    policy.take_evaluations([evaluated(7)])
    assert policy.rating()["eval_return_mean"] == 7.0
    policy.forget_evaluation(20)
    assert policy.rating()["eval_return_mean"] is policy.rating()["eval_env_steps"] is None
    policy.take_evaluations([evaluated(8)])
    assert policy.rating()["eval_return_mean"] is None
    policy.take_evaluations([evaluated(20)])
    assert policy.rating()["eval_return_mean"] == 20.0
    assert [each["eval_return_mean"] for each in policy.evaluations] == [7.0, 8.0, 20.0]


def test_returns_of_weights_that_a_copy_replaces_rate_nothing() -> None:
    """Neither from when the copy is on its way, nor afterwards, as the best mean."""
    ours = statistics(2)
    (policy,) = ours.policies

    def play(*returns: float) -> None:
        ours.take_episodes([EpisodeRecord(0, 0, 0, ret, 1) for ret in returns])

    def rated() -> tuple[Any, ...]:
        rating = policy.rating()
        return rating["copies"], rating["return_mean"], policy.return_best

    play(5.0, 7.0)
    assert rated() == (0, 6.0, 6.0)
    policy.expect_copy(1)
    assert rated() == (1, None, 6.0), "the weights are replaced at any time"
    policy.forget_returns()
    assert rated() == (1, None, None)
    policy.begin_copy()
    play(1.0)
    assert rated() == (1, None, None)
    play(2.0)
    assert rated() == (1, 1.5, 1.5)
    (again,) = statistics(2, ours.state(policy)).policies
    assert again.rating()["copies"] == 1 and again.return_best == 1.5

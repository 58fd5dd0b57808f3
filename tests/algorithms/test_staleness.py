"""Experience that is too old to learn from: no step, no version, no influence on what is reported;
and settings that would produce nothing else are refused or adapted, with words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sampleforge.algorithms.averaging import DataParallel
from sampleforge.algorithms.rollout_learner import RolloutLearner
from sampleforge.api import train
from sampleforge.cli.running import run
from sampleforge.config import ConfigError
from sampleforge.peers.group import RankGroup
from sampleforge.rollouts.batch import Batch
from sampleforge.run.reports.metrics import read_metrics
from sampleforge.run.watches import StaleExperience
from sampleforge.topologies.config import AppoConfig, DdppoConfig
from sampleforge.topologies.sampler_plan import Plan
from sampleforge.topologies.slots import plan as slots_plan
from sampleforge.workers.metrics import ReportMetrics
from tests.support.graphs import build, spec_of, updates
from tests.support.learners import config, learner_of, one_batch
from tests.support.pairings import plan_of
from tests.support.rank_learners import batches, rows
from tests.support.rank_learners import config as rank_config
from tests.support.rank_learners import learner_of as rank_learner
from tests.support.rank_threads import on_ranks

NEW, OLD = 1000, 0
"""Versions: of the learner, and of experience beyond its limit."""


def aged(batch: Batch, columns: int) -> Batch:
    """``batch`` with its first ``columns`` columns too old, the others fresh."""
    version = torch.full_like(batch.version, NEW)
    version[:, :columns] = OLD
    return dataclasses.replace(batch, version=version)


def state_of(learner: RolloutLearner) -> dict[str, torch.Tensor]:
    """What gradient steps change."""
    names = ("model/actor", "model/policy", "model/value_w", "model/value_b", "optimiser/")
    return {n: t for n, t in learner.state()[0].items() if n.startswith(names)}


def moving_learner(**kwargs: Any) -> tuple[RolloutLearner, Batch]:
    """A learner whose optimiser has momentum, and a batch."""
    chosen = config(**kwargs)
    learner = learner_of(dataclasses.replace(chosen, max_policy_lag=10))
    batch = one_batch(chosen)
    learner.update(batch, 0.0)
    learner.version = NEW
    return learner, batch


# ---- gradient steps ----


@pytest.mark.parametrize("schedule", ["constant", "kl_adaptive"])
def test_a_batch_of_stale_rows_only_changes_nothing(schedule: Any) -> None:
    """Neither by Adam's momentum nor by the schedule, which would see no KL."""
    learner, batch = moving_learner(num_epochs=3, lr_schedule=schedule)
    before, rate = state_of(learner), learner._learning_rate
    metrics = learner.update(aged(batch, batch.steps[1]), 0.0).metrics
    assert metrics["stale_steps"] == metrics["valid_steps"] > 0
    assert metrics["empty_minibatches"] == 3 and metrics["skipped_steps"] == 0
    assert learner.version == NEW and metrics["learning_rate"] == rate
    after = state_of(learner)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_minibatch_without_valid_rows_is_not_a_step_and_not_in_the_means() -> None:
    """One row of four is fresh, and minibatches are single rows: one step per epoch, and metrics
    as if the batch had been that row alone."""
    kwargs = {"num_epochs": 1, "num_envs_per_worker": 8, "num_splits": 2}
    learner, batch = moving_learner(minibatch_size=8, **kwargs)
    metrics = learner.update(aged(batch, 3), 0.0).metrics
    assert batch.steps[1] == 4 and metrics["empty_minibatches"] == 3
    assert learner.version == NEW + 1
    alone, _ = moving_learner(minibatch_size=8, **kwargs)
    expected = alone.update(aged(rows(batch, 3, 4), 0), 0.0).metrics
    for name in ("loss", "policy_loss", "value_loss", "entropy", "value_mean", "grad_norm"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5), name
    for name, tensor in state_of(alone).items():
        torch.testing.assert_close(state_of(learner)[name], tensor, msg=name)


def test_means_over_minibatches_are_weighted_by_their_valid_rows() -> None:
    """Nothing moves within an update: means are those over all valid rows."""
    chosen = config(learning_rate=1e-15, minibatch_size=8, num_envs_per_worker=8)
    batch = one_batch(chosen)
    valid = batch.valid.clone()
    valid[2:, 0] = False  # 2 rows of 8 are left in one of the minibatches
    batch = dataclasses.replace(batch, valid=valid)
    metrics = learner_of(chosen).update(batch, 0.0).metrics
    whole = dataclasses.replace(chosen, minibatch_size=None)
    expected = learner_of(whole).update(batch, 0.0).metrics
    for name in ("entropy", "value_mean"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5), name


def test_ranks_agree_on_which_minibatches_have_valid_rows() -> None:
    """A minibatch counts as soon as one rank has a valid row in it."""
    chosen = rank_config(max_policy_lag=10, num_epochs=1)
    fresh = aged(batches("none")[0], 0)

    def work(group: RankGroup) -> tuple[int, float]:
        learner = rank_learner(chosen, DataParallel(group))
        learner.version = NEW
        own = rows(fresh, 4 * group.rank, 4 * group.rank + 4)
        learner.update(aged(own, 4 if group.rank else 0), 0.0)
        half = learner.version
        return half, learner.update(aged(own, 4), 0.0).metrics["empty_minibatches"]

    assert on_ranks(2, work) == [(NEW + 1, 1.0)] * 2


@pytest.mark.long
def test_a_batch_without_valid_rows_ends_an_iteration_of_the_ranks(tmp_path: Path) -> None:
    """Every second step is that of an env that begins its next episode; each is a batch, after
    which the ranks agree on whether to end, and, with --debug, compare their weights."""
    chosen = DdppoConfig(
        env="tests.support.envs:CodeEnv",
        env_kwargs={"length": 1},
        decorrelate=False,
        num_envs_per_worker=1,
        num_splits=1,
        rollout=1,
        num_epochs=1,
        serial=True,
        quiet=True,
        debug=True,
        train_for_env_steps=50,
        run_dir=str(tmp_path / "run"),
    )
    summary = train(chosen).summary
    assert summary["status"] == "finished" and summary["env_steps"] == 50
    assert summary["updates"] == 50, "batches without valid rows make no version"
    assert summary["checksums_compared"] == 99


def test_the_policy_lag_is_also_reported_in_batches() -> None:
    learner, batch = moving_learner(num_epochs=5)
    version = torch.full_like(batch.version, NEW - 10)
    version[:4] = NEW - 5
    metrics = learner.update(dataclasses.replace(batch, version=version), 0.0).metrics
    assert metrics["policy_lag_max"] == 10 and metrics["policy_lag_batches_max"] == 2
    mean = metrics["policy_lag_mean"]
    assert 5 < mean < 10 and metrics["policy_lag_batches_mean"] == pytest.approx(mean / 5)


# ---- a report of several updates ----


def said(learned: float, seen: float, **metrics: float) -> dict[str, float]:
    return {"valid_steps": seen, "stale_steps": seen - learned, **metrics}


def test_a_reports_means_are_weighted_by_rows_and_its_maxima_are_maxima() -> None:
    report = ReportMetrics()
    report.add(said(300, 300, loss=1.0, policy_lag_mean=2.0, policy_lag_max=3.0))
    report.add(said(100, 200, loss=5.0, policy_lag_mean=7.0, policy_lag_max=9.0))
    report.add(said(0, 100, loss=0.0, policy_lag_mean=100.0, policy_lag_max=120.0))
    found = report.take()
    assert found["loss"] == pytest.approx(2.0), "nothing was learned from the third batch"
    assert found["policy_lag_mean"] == pytest.approx((600 + 1400 + 10_000) / 600)
    assert found["policy_lag_max"] == 120.0
    assert (found["valid_steps"], found["stale_steps"]) == (200.0, pytest.approx(200 / 3))
    assert report.take() == {}


def test_a_report_without_valid_rows_has_no_loss() -> None:
    report = ReportMetrics()
    report.add(said(0, 100, loss=0.0, learning_rate=0.1, policy_lag_max=7.0))
    found = report.take()
    assert "loss" not in found
    assert found["learning_rate"] == 0.1 and found["policy_lag_max"] == 7.0


def test_metrics_of_replay_updates_have_equal_weight_except_maxima() -> None:
    report = ReportMetrics()
    report.add({"loss": 1.0, "td_error_max": 4.0})
    report.add({"loss": 2.0, "td_error_max": 3.0})
    assert report.take() == {"loss": 1.5, "td_error_max": 4.0}


# ---- the plan ----

ASYNC = {
    "async_rl": True,
    "rollout": 8,
    "num_workers": 2,
    "num_envs_per_worker": 4,
    "num_splits": 1,
}
"""With batches of 64: 2 slots each, 6 in circulation, so a row is 3 updates behind a learner that
is never done in time."""


def plan(**kwargs: Any) -> Plan:
    chosen = AppoConfig(env="tests.support.envs:CodeEnv", **{**ASYNC, "batch_size": 64, **kwargs})
    return plan_of(chosen, spec_of(chosen), "cpu")


MANY = {"num_epochs": 10, "minibatch_size": 8}


def test_the_plan_expects_the_lag_of_what_circulates() -> None:
    found = plan(**MANY)
    assert (found.slots, found.slots_per_batch) == (6, 2)
    assert found.lag.batches == 3 and found.lag.steps_per_batch == 80
    assert found.lag.versions == 240
    assert plan().lag.versions == 3
    assert plan(num_batches_to_accumulate=1).lag.versions == 2
    assert plan(async_rl=False, **MANY).lag.versions == 0


def test_a_limit_below_the_expected_lag_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        plan(max_policy_lag=100, **MANY)
    for part in ("--max-policy-lag 100", "240", "--max-policy-lag 480", "--no-async-rl"):
        assert part in str(refused.value)
    assert plan(max_policy_lag=240, **MANY).lag.limit == 240
    assert plan(max_policy_lag=0, async_rl=False, **MANY).lag.limit == 0
    assert plan(max_policy_lag=0, sampler_only=True).lag.limit == 0, "nothing is learned"


def test_a_limit_that_is_left_open_follows_the_expected_lag() -> None:
    assert plan(**MANY).lag.limit == 480
    assert plan().lag.limit == 100
    graph, _ = build(config(num_epochs=10, minibatch_size=8, num_workers=2))
    (note,) = (line for line in graph.describe().splitlines() if "--max-policy-lag" in line)
    assert "--max-policy-lag 480" in note and "240" in note
    graph, _ = build(config())
    assert "--max-policy-lag" not in graph.describe()


@pytest.mark.long
def test_an_asynchronous_run_with_many_steps_per_batch_learns_from_all_that_it_samples() -> None:
    """A batch has 160 gradient steps: all rows that were under way are beyond a fixed limit of
    100 versions, for ever."""
    chosen = config(num_workers=2, num_epochs=40, minibatch_size=16)
    found = [metrics for _, metrics in updates(chosen, 5)][1:]
    for metrics in found:
        assert metrics["policy_lag_max"] == 160 and metrics["policy_lag_batches_max"] == 1
        assert metrics["stale_steps"] == 0


def test_steps_that_go_on_through_a_ranks_update_are_expected_to_be_one_update_old() -> None:
    chosen = DdppoConfig(
        env="tests.support.envs:CodeEnv",
        num_ranks=1,
        num_envs_per_worker=8,
        rollout=8,
        minibatch_size=8,
        num_epochs=20,
        variable_experience=True,
    )
    lag = plan_of(chosen, spec_of(chosen), "cpu").lag
    assert (lag.versions, lag.limit) == (160, 320)
    fixed = dataclasses.replace(chosen, variable_experience=False)
    assert plan_of(fixed, spec_of(fixed), "cpu").lag.versions == 0


# ---- the warning ----

STALE = {"stale_fraction": 0.61, "policy_lag_mean": 240.0, "policy_lag_batches_mean": 3.0}


def test_more_than_half_stale_rows_cause_one_warning() -> None:
    graph, _ = build(config(max_policy_lag=100))
    said: list[str] = []
    session: Any = SimpleNamespace(message=lambda text, level: said.append(text))
    warning = StaleExperience(graph)
    for report in ({}, {**STALE, "stale_fraction": 0.5}, STALE, STALE):
        warning.on_report(session, report)
    (text,) = said
    for part in ("61%", "--max-policy-lag 100", "240.0 versions", "3.0 updates", "--num-epochs"):
        assert part in text


def mostly_stale(monkeypatch: pytest.MonkeyPatch, **more: Any) -> AppoConfig:
    """A serial run whose rows are older than was expected, as those of late actors are."""
    monkeypatch.setattr(slots_plan, "check_asynchronous_lag", lambda *_: None)
    return config(num_workers=2, batch_size=16, max_policy_lag=0, serial=True, **more)


@pytest.mark.long
def test_a_run_warns_once_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = mostly_stale(
        monkeypatch,
        quiet=True,
        report_interval=0.2,
        train_for_env_steps=2000,
        run_dir=str(tmp_path / "run"),
    )
    result = train(chosen)
    reports = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sum(report["stale_fraction"] > 0.5 for report in reports) >= 2
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("is older than --max-policy-lag 0") == 1
    lag = result.summary["policy_lag"]
    assert lag["max"] == lag["batches_max"] >= lag["batches_mean"] > 0, "a step per batch"
    assert result.summary["updates"] > 0, "what is fresh is learned from"


@pytest.mark.long
def test_a_benchmark_warns_that_its_learner_does_not_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = mostly_stale(
        monkeypatch,
        benchmark=True,
        benchmark_seconds=1.0,
        benchmark_peak=False,
        run_dir=str(tmp_path / "run"),
    )
    assert run(chosen) == 0
    result = json.loads((tmp_path / "run" / "benchmark.json").read_text())
    (warning,) = result["verdict"]["warnings"]
    assert "older than --max-policy-lag 0" in warning and result["stale_fraction"] > 0.5
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("older than --max-policy-lag 0") == 2, "in the table and the last line"

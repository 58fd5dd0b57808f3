"""``--stop``: a session ends at the first report that meets a condition, and a metric that no
report can have is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sampleforge.api import train
from sampleforge.config import ConfigError
from sampleforge.run.callback import Callback
from sampleforge.run.session import Session
from sampleforge.run.stopping import check_metric
from sampleforge.runtime.config import StopCondition
from sampleforge.topologies.config import ApexConfig, AppoConfig, DdppoConfig, MarwilConfig

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs_per_worker": 4, "report_interval": 0.2, "seed": 2},
    **{"serial": True, "num_epochs": 1, "batch_size": 256, "rollout": 16},
}


def config(folder: Path, *stop: str, cls: Any = AppoConfig, **more: Any) -> Any:
    return cls(**{**SMALL, "train_for_env_steps": 3000, "run_dir": str(folder), **more}, stop=stop)


class Reports(Callback):
    def __init__(self) -> None:
        self.reports: list[Mapping[str, float]] = []
        self.said: list[str] = []

    def on_report(self, session: Session, report: Mapping[str, float]) -> None:
        self.reports.append(dict(report))

    def on_message(self, session: Session, message: Any) -> None:
        self.said.append(message.text)


@pytest.mark.parametrize("cls", [AppoConfig, DdppoConfig])
def test_the_first_condition_that_is_met_ends_the_run_and_is_named(
    tmp_path: Path, cls: Any
) -> None:
    """DD-PPO ends where its ranks have agreed, after an update."""
    more = {"num_ranks": 1, "batch_size": 64} if cls is DdppoConfig else {}
    told = Reports()
    chosen = config(tmp_path, "length_mean>1e6", "episodes>=20", cls=cls, **more)
    summary = train(chosen, [told]).summary
    assert summary["stopped_by"] == "episodes>=20" and summary["status"] == "finished"
    counts = [report["episodes"] for report in told.reports]
    assert sum(count >= 20 for count in counts) <= 2, "that report, and the last one"
    assert summary["env_steps"] < 3000
    assert any("Stop condition met: episodes>=20 (episodes is" in text for text in told.said)
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_a_limit_is_named_in_the_summary_too_and_a_stop_by_a_callback_is_none(
    tmp_path: Path,
) -> None:
    class Enough(Callback):
        def on_report(self, session: Session, report: Mapping[str, float]) -> None:
            session.stop()

    limited = config(tmp_path / "a", "return_mean>1e6", train_for_env_steps=500)
    assert train(limited).summary["stopped_by"] == "env_steps>=500"
    assert train(config(tmp_path / "b"), [Enough()]).summary["stopped_by"] is None


def test_a_run_that_has_met_its_condition_resumes_with_another_one(tmp_path: Path) -> None:
    first = train(config(tmp_path, "env_steps>=400")).summary
    again = train(config(tmp_path, "env_steps>=900")).summary
    assert first["stopped_by"] == "env_steps>=400" and again["stopped_by"] == "env_steps>=900"
    assert again["env_steps"] > first["env_steps"]


@pytest.mark.parametrize(
    ("stop", "more", "answer"),
    [
        ("retrun_mean>=1", {}, "no metric of that name. Did you mean return_mean"),
        ("eval_return_mean>=1", {}, "there are no evaluations; add --evaluate-interval N"),
        (
            "eval_retrun_mean>=1",
            {"evaluate_interval": 1000},
            "evaluations have no metric of that name. Did you mean eval_return_mean",
        ),
        (
            "eval_return_mean>=1",
            {"evaluate_interval": 1000},
            "each policy has one of its own. Did you mean policy_0/eval_return_mean",
        ),
        ("priority>=1", {}, "it is a histogram"),
        ("policy_1/loss<1", {}, "there is no metric of that name"),
        ("xyzzy<1", {}, "the page Metrics of the documentation lists them"),
    ],
)
def test_a_metric_that_is_not_known_is_refused(stop: str, more: Any, answer: str) -> None:
    condition, chosen = StopCondition.parse(stop), AppoConfig(env="x", **more)
    with pytest.raises(ConfigError, match=answer):
        check_metric(condition, chosen, ["policy_0/"], adds_metrics=False)


@pytest.mark.parametrize("stop", ["return_mean>=1", "episodes>=10", "length_mean<5"])
@pytest.mark.parametrize("cls", [ApexConfig, MarwilConfig])
def test_metrics_of_episodes_are_refused_from_data_alone(cls: Any, stop: str) -> None:
    condition = StopCondition.parse(stop)
    with pytest.raises(ConfigError, match=f"--stop '{stop}': from data alone .* eval_return_mean"):
        check_metric(condition, cls(env="x", input=("data",)), [], adds_metrics=False)
    check_metric(condition, cls(env="x", input=("data",)), [], adds_metrics=True)
    if cls is ApexConfig:
        check_metric(condition, cls(env="x", input=("live", "data")), [], adds_metrics=False)


def test_it_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no metric of that name"):
        train(config(tmp_path, "retrun_mean>=1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "metric", ["loss", "policy_0/return_mean", "policy_0/eval_return_mean", "env_mine", "pbt_round"]
)
def test_metrics_that_runs_may_have_are_not_refused(metric: str) -> None:
    chosen = AppoConfig(env="x", evaluate_interval=10)
    condition = StopCondition(metric, ">", 1.0)
    check_metric(condition, chosen, ["policy_0/"], adds_metrics=False)


@pytest.mark.parametrize("stop", ["q_mean>=1", "env_mine>=1"])
def test_a_metric_that_never_comes_is_refused_as_soon_as_that_is_known(
    tmp_path: Path, stop: str
) -> None:
    """One of another algorithm after the first update, one of an environment after a window."""
    told = Reports()
    with pytest.raises(ConfigError, match=f"--stop '{stop}': no report of this run has it"):
        train(config(tmp_path, stop, metrics_window=15, train_for_env_steps=10**6), [told])
    last = told.reports[-1]
    assert last["updates"] > 0 and 1 <= last["episodes"] < 100
    if stop.startswith("env_"):
        assert last["episodes"] >= 15 > told.reports[-2]["episodes"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["stopped_by"]) == ("failed", None)


def test_what_no_learner_of_a_replay_has_is_refused_and_of_rollouts_it_may_come_late(
    tmp_path: Path,
) -> None:
    """The values of rollouts have an explained variance, once their targets vary."""
    stop = "explained_variance>=-1e9"
    with pytest.raises(ConfigError, match=r"explained_variance.*: no report of this run has it"):
        train(config(tmp_path / "a", stop, cls=ApexConfig_, train_for_env_steps=10**6))
    summary = train(config(tmp_path / "b", stop, train_for_env_steps=10**6)).summary
    assert summary["stopped_by"] == "explained_variance>=-1e+09"


SUCCESSES: dict[str, Any] = {
    **{"env": "tests.support.goal_envs:rarely", "num_workers": 1, "num_envs_per_worker": 8},
    **{"metrics_window": 20},
}


def test_a_share_of_successes_is_over_episodes_of_all_rows(tmp_path: Path) -> None:
    """One in ten succeeds, after 5 env steps, and all others fail after 100: the first episode that
    ends is a success."""
    told = Reports()
    stop, limit = "env_success>=0.9", 8 * 150
    part = config(tmp_path, stop, **{**SUCCESSES, "train_for_env_steps": limit})
    assert train(part, [told]).summary["stopped_by"] == f"env_steps>={limit}"
    known = [r["env_success"] for r in told.reports if "env_success" in r]
    assert known and max(known) <= 0.5
    told.reports.clear()
    more = config(tmp_path, stop, **{**SUCCESSES, "train_for_env_steps": 2 * limit})
    assert train(more, [told]).summary["stopped_by"] == f"env_steps>={2 * limit}"
    assert max(r["env_success"] for r in told.reports) <= 0.5, "those of before count"
    assert "env_success" in told.reports[0]


def test_a_metric_of_a_callback_of_ones_own_is_a_condition(tmp_path: Path) -> None:
    class Counting(Callback):
        made = 0

        def extend_report(self, session: Session, report: dict[str, float]) -> None:
            self.made += 1
            report["reports_made"] = float(self.made)

    summary = train(config(tmp_path, "reports_made>=3", cls=ApexConfig_), [Counting()]).summary
    assert summary["stopped_by"] == "reports_made>=3"


def ApexConfig_(**given: Any) -> ApexConfig:
    """Ape-X with what the settings above have of PPO's left out."""
    for name in ("num_epochs", "batch_size"):
        del given[name]
    return ApexConfig(**given, learning_starts=100, replay_capacity=2000)

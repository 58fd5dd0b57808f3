"""A run with several policies, from the command line to its pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sampleforge.cli import main
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.reports.metrics import by_policy, evaluations, read_metrics, with_overall
from sampleforge.run.screen.live_panel import LivePanel
from sampleforge.run.screen.progress import Goal
from sampleforge.tools.plots.curves import read_curves

RUN = "train appo --env CartPole-v1 --serial --num-envs-per-worker 4 --batch-size 128 --seed 1"


@pytest.mark.long
def test_policies_are_trained_shown_drawn_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = [*RUN.split(), "--num-policies", "3", "--train-for-env-steps", "4000"]
    assert main([*words, "--report-interval", "0.1", "--run-dir", str(run)]) == 0
    out = capsys.readouterr().out
    assert "--policy policy_0" in out, "how to evaluate one"
    reports = read_metrics(RunFolder.existing(run).metrics_file)
    assert set(by_policy(reports[-1])) == {"policy_0", "policy_1", "policy_2"}
    curves = read_curves(run)
    assert [each.name for each in curves] == [f"run policy_{i}" for i in range(3)]
    last = [each.series("return_mean")[-1] for each in curves]
    assert last == [reports[-1][f"policy_{i}/return_mean"] for i in range(3)]
    assert main(["eval", str(run), "--episodes", "2", "--quiet", "--policy", "policy_2"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert main(["eval", str(run), "--episodes", "2", "--quiet"]) == 2
    assert "say which of them: --policy policy_0" in capsys.readouterr().err


TWICE = "is there twice, and a policy is trained once; name each policy once"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--policies-to-train policy_0 policy_0", f"policy_0,policy_0: policy_0 {TWICE}"),
        ("--policies-to-train policy_1,policy_1", f"policy_1,policy_1: policy_1 {TWICE}"),
        ("--init-from policy_0=a policy_0=b", "policy_0 is given twice; leave out one of the two"),
    ],
)
def test_a_policy_that_is_named_twice_is_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    args = [*RUN.split(), "--num-policies", "2", *words.split(), "--run-dir", str(run)]
    assert main(args) == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in error
    assert not run.exists()


def test_the_panel_has_a_row_for_each_policy() -> None:
    values = {"env_steps": 9.0, "wall_s": 1.0, "a/return_mean": 31.5, "b/return_mean": 8.25}
    values |= {"a/entropy": 0.5, "b/entropy": 0.25, "a/loss": 1.0, "b/loss": 3.0}
    values |= {f"{policy}/{name}": 7.0 for policy in "ab" for name in ("episodes", "updates")}
    goal = Goal(None, None)
    goal.observe(values)
    for width in (60, 100):
        written = io.StringIO()
        Console(width=width, file=written).print(LivePanel("run", values, goal))
        rows = [line.split() for line in written.getvalue().splitlines() if line]
        assert ["a", "31.50", "7", "7", "1", "0.500"] in rows
        assert ["b", "8.25", "7", "7", "3", "0.250"] in rows
        assert max(map(len, written.getvalue().splitlines())) <= width


def test_the_panel_of_a_population_has_hyperparameters_and_donors() -> None:
    values = {"env_steps": 9.0, "wall_s": 1.0}
    for i, (rate, objective) in enumerate([(1e-3, 31.5), (0.02, 8.25)]):
        own = {"member_env_steps": 4.0, "pbt_learning_rate": rate, "pbt_objective": objective}
        own |= {"pbt_gamma": 0.99, "pbt_exploration_coeff": 0.003, "episodes": 7.0}
        own |= {"updates": 3.0}
        own |= {"copied_from": 0.0} if i else {}
        values |= {f"policy_{i}/{name}": value for name, value in own.items()}
    goal = Goal(None, None)
    goal.observe(values)
    for width in (60, 100):
        written = io.StringIO()
        Console(width=width, file=written).print(LivePanel("run", values, goal))
        rows = [line.split() for line in written.getvalue().splitlines() if line]
        first = next(row for row in rows if row[0] == "policy_0")
        second = next(row for row in rows if row[0] == "policy_1")
        assert first[:4] == ["policy_0", "31.50", "7", "0.001"] and first[-1] == "-"
        assert second[:4] == ["policy_1", "8.25", "7", "0.02"] and second[-1] == "policy_0"
        assert max(map(len, written.getvalue().splitlines())) <= width


def test_the_panel_shows_the_rating_of_a_policy_that_plays_its_snapshots() -> None:
    values = {"env_steps": 9.0, "wall_s": 1.0, "self_play_elo": 1431.6, "self_play_elo_sd": 52.1}
    values |= {"self_play_snapshots": 12.0, "self_play_games": 900.0}
    goal = Goal(None, None)
    goal.observe(values)
    written = io.StringIO()
    rates = {"self_play_win_rate_mean": 0.71, "self_play_win_rate_min": 0.48}
    Console(width=100, file=written).print(LivePanel("run", {**values, **rates}, goal))
    assert "Elo 1,432 ± 52, wins 71% against 12 snapshots (the hardest 48%)" in written.getvalue()
    Console(width=60, file=written).print(LivePanel("run", values, goal))
    assert "Elo 1,432 ± 52, wins - against" in written.getvalue()


def test_what_only_policies_have_is_a_mean_or_the_largest() -> None:
    values = {"return_mean": 7.0, "a/loss": 1.0, "b/loss": 2.0, "a/return_mean": 1.0}
    values |= {"a/policy_lag_max": 3.0, "b/policy_lag_max": 5.0}
    values |= {f"{policy}/{name}": 7.0 for policy in "ab" for name in ("episodes", "updates")}
    overall = with_overall(values)
    assert overall["loss"] == 1.5 and overall["policy_lag_max"] == 5.0
    assert overall["return_mean"] == 7.0, "the run has its own"
    assert with_overall({"loss": 2.0}) == {"loss": 2.0}


def test_a_slash_in_the_name_of_a_metric_makes_no_policy() -> None:
    values = {"env_level/score": 1.0, "env_steps": 1.0, "wall_s": 0.0, "episodes": 3.0}
    assert by_policy(values) == {} and with_overall(values) == values
    several = {f"{policy}/{name}": 7.0 for policy in "ab" for name in ("episodes", "updates")}
    found = by_policy({**values, **several, "a/level/score_mean": 2.0, "env_level/episodes": 4.0})
    own = {"episodes": 7.0, "updates": 7.0}
    assert found == {"a": {**own, "level/score_mean": 2.0}, "b": own}
    assert evaluations({**values, "env_level/eval_env_steps": 5.0}) == {}

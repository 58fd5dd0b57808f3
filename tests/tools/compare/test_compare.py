"""`sampleforge compare`: settings over seeds and environments, from the runs' evaluations."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.tools.compare.scores import ATARI, scales
from sampleforge.tools.compare.statistics import iqm, probability_of_improvement
from tests.support.reports import make_run

Capture = pytest.CaptureFixture[str]


def run_with(path: Path, returns: list[float], more: Any = None, **settings: Any) -> str:
    """A run with these evaluations, one every 100 env steps; ``more``: other scalars of each."""
    reports = [
        {
            **{"env_steps": 100 * i + 50, "wall_s": float(i), "return_mean": 1.0},
            **{"eval_env_steps": 100 * i, "eval_return_mean": value},
            **(more or {}),
        }
        for i, value in enumerate(returns, 1)
    ]
    return make_run(path, reports, **settings)


def compared(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["compare", *words]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def two_settings(tmp_path: Path) -> tuple[list[str], dict[float, list[float]]]:
    """Four seeds of two learning rates, and the last evaluations of each."""
    last = {0.01: [100.0, 140.0, 90.0, 120.0], 0.001: [80.0, 130.0, 70.0, 60.0]}
    runs = [
        run_with(tmp_path / f"{rate}-{seed}", [10.0, 200.0, end], seed=seed, learning_rate=rate)
        for rate, ends in last.items()
        for seed, end in enumerate(ends)
    ]
    return runs, last


def test_seeds_of_a_setting_are_aggregated_with_intervals(tmp_path: Path, capsys: Capture) -> None:
    runs, last = two_settings(tmp_path)
    result = compared(capsys, *runs)
    assert result["unit"] == "return" and len(result["settings"]) == 2
    for setting, (rate, ends) in zip(result["settings"], last.items(), strict=True):
        assert setting["label"] == f"learning rate {rate}" and setting["seeds"] == 4
        found = setting["iqm"]
        assert found["value"] == pytest.approx(float(iqm(np.array(ends)[:, None])))
        assert min(ends) <= found["low"] < found["value"] < found["high"] <= max(ends)
        assert "optimality_gap" not in setting, "there is no score that counts as 1"
        assert setting["curve"]["x"] == [100, 200, 300]
        assert setting["curve"]["y"][:2] == pytest.approx([10.0, 200.0])
    first = result["improvements"][0]
    columns = [np.array(ends)[:, None] for ends in last.values()]
    assert first["value"] == pytest.approx(float(probability_of_improvement(*columns)))
    assert first["low"] < first["value"] < first["high"]


def test_statistics_with_a_slash_in_their_names_are_no_policies(
    tmp_path: Path, capsys: Capture
) -> None:
    more = {"env_level/score": 3.0, "env_goal/reached": 1.0}
    runs = [run_with(tmp_path / str(seed), [10.0, 20.0], more, seed=seed) for seed in (1, 2)]
    for words in ([], ["--by", "algo"]):
        (setting,) = compared(capsys, *runs, *words)["settings"]
        assert setting["seeds"] == 2, words


def test_a_metric_of_a_callback_with_the_name_of_an_evaluation_is_no_score(
    tmp_path: Path, capsys: Capture
) -> None:
    """An evaluation has the env steps of its weights, too."""
    run = run_with(tmp_path / "a", [10.0, 20.0], {"eval_env_steps": None, "return_mean": 3.0})
    assert main(["compare", run]) == 0
    out = capsys.readouterr().out
    (setting,) = json.loads(out.splitlines()[-1])["settings"]
    assert setting["runs"][0]["return"] == 3.0 and "a has no evaluations" in out


def test_the_evaluation_that_counts_can_be_chosen(tmp_path: Path, capsys: Capture) -> None:
    run = run_with(tmp_path / "a", [10.0, 200.0, 30.0], seed=1)
    for words, value, steps in (
        ([], 30.0, 300),
        (["--score", "best"], 200.0, 200),
        (["--at", "250"], 200.0, 200),
        (["--at", "150", "--score", "best"], 10.0, 100),
    ):
        (setting,) = compared(capsys, run, *words)["settings"]
        (own,) = setting["runs"]
        assert (own["return"], own["env_steps"]) == (value, steps), words


@pytest.mark.long
def test_environments_are_averaged_on_the_scales_given(tmp_path: Path, capsys: Capture) -> None:
    """What was left open may differ between the environments; what was given tells settings
    apart."""
    returns = {
        ("CartPole-v1", 0.01): [250.0, 500.0],
        ("Acrobot-v1", 0.01): [-500.0, -100.0],
        ("CartPole-v1", 0.001): [0.0, 50.0],
        ("Acrobot-v1", 0.001): [-500.0, -400.0],
    }
    steps = {"CartPole-v1": 1000, "Acrobot-v1": 2000}
    runs = [
        run_with(
            tmp_path / f"{env}-{rate}-{seed}",
            [value],
            **{"env": env, "seed": seed, "learning_rate": rate},
            train_for_env_steps=steps[env],
        )
        for (env, rate), values in returns.items()
        for seed, value in enumerate(values)
    ]
    out, table = tmp_path / "x.png", tmp_path / "x.csv"
    words = ["--normalise", "CartPole-v1=0..500", "Acrobot-v1=-500..-100"]
    pytest.importorskip("matplotlib")
    result = compared(capsys, *runs, *words, "--out", str(out), "--csv", str(table))
    good, bad = result["settings"]
    assert good["mean"]["value"] == pytest.approx((0.5 + 1.0 + 0.0 + 1.0) / 4)
    assert good["iqm"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    assert good["optimality_gap"]["value"] == pytest.approx(1 - good["mean"]["value"])
    assert bad["median"]["value"] == pytest.approx((0.05 + 0.125) / 2)
    assert good["returns"]["Acrobot-v1"]["value"] == -300.0
    assert out.stat().st_size > 10_000
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    chosen = {(row["setting"], row["environment"], row["metric"]): row["value"] for row in rows}
    assert float(chosen[good["label"], "", "mean"]) == pytest.approx(good["mean"]["value"])
    assert float(chosen[bad["label"], "CartPole-v1", "mean_return"]) == 25.0
    assert main(["compare", *runs]) == 2
    assert "--normalise CartPole-v1=LOW..HIGH Acrobot-v1=LOW..HIGH" in capsys.readouterr().err


def test_one_seed_is_shown_without_an_interval(tmp_path: Path, capsys: Capture) -> None:
    runs = [
        run_with(tmp_path / f"{rate}", [5.0], seed=1, learning_rate=rate) for rate in (0.1, 0.2)
    ]
    pytest.importorskip("matplotlib")
    assert main(["compare", *runs, "--out", str(tmp_path / "x.png")]) == 0
    text = capsys.readouterr().out
    assert "an interval over seeds cannot be made of one" in " ".join(text.split())
    result = json.loads(text.splitlines()[-1])
    assert result["improvements"] == []
    assert result["settings"][0]["iqm"] == {"value": 5.0, "low": None, "high": None}


@pytest.mark.long
def test_settings_can_be_told_apart_by_some_fields_alone(tmp_path: Path, capsys: Capture) -> None:
    runs = [
        run_with(tmp_path / f"{rate}-{n}", [rate], seed=n, learning_rate=rate, num_epochs=n)
        for rate in (0.5, 0.25)
        for n in (1, 2)
    ]
    assert len(compared(capsys, *runs)["settings"]) == 4
    result = compared(capsys, *runs, "--by", "learning-rate")
    labels = [(setting["label"], setting["seeds"]) for setting in result["settings"]]
    assert labels == [("learning rate 0.5", 2), ("learning rate 0.25", 2)]


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: Capture) -> None:
    run = run_with(tmp_path / "a", [1.0, 2.0], seed=1)
    plain = make_run(tmp_path / "plain", [{"env_steps": 5, "wall_s": 1.0}])
    other = run_with(tmp_path / "other", [1.0], seed=1, env="Acrobot-v1")
    both = ["--normalise", "CartPole-v1=0..500", "Acrobot-v1=-500..0"]
    again = run_with(tmp_path / "again", [1.0], seed=2)
    longer = run_with(tmp_path / "longer", [1.0], seed=2, train_for_env_steps=10)
    other2 = run_with(tmp_path / "other2", [1.0], seed=2, env="Acrobot-v1")
    cases = [
        ([], "no run to compare"),
        ([plain], "--evaluate-interval"),
        ([run, run], "given twice"),
        ([run, "--at", "9000"], "trained for 250 env steps only"),
        ([run, "--at", "50"], "the first evaluation of a is that of 100"),
        ([run, again, other, *both], "2 in CartPole-v1, 1 in Acrobot-v1"),
        ([run, longer, other, other2, *both], "train_for_env_steps: None -> 10"),
        ([run, "--by", "learning-rat"], "did you mean learning_rate?"),
        ([run, again, "--by", "seed"], "--by seed: runs of one setting may differ in it"),
        ([run, again, "--by", "metrics-window"], "--by metrics_window: runs of one setting"),
        ([run, "--normalise", "CartPole=0..1"], "did you mean CartPole-v1?"),
        ([run, "--normalise", "CartPole-v1=9..1"], "must be LOW..HIGH"),
    ]
    for words, message in cases:
        assert main(["compare", *words]) == 2, words
        assert message in capsys.readouterr().err, words


def test_scores_of_different_kinds_are_not_compared(tmp_path: Path, capsys: Capture) -> None:
    likely = run_with(tmp_path / "likely", [1.0], seed=1)
    drawn = run_with(tmp_path / "drawn", [1.0], seed=2, evaluate_stochastic=True)
    settings: dict[str, Any] = {"evaluate_interval": 100, "evaluate_env_kwargs": {"wind": 0}}
    harder = run_with(tmp_path / "harder", [1.0], seed=3, **settings)
    assert main(["compare", likely, drawn, harder]) == 2
    error = capsys.readouterr().err
    assert "in CartPole-v1 (each the evaluation) are of different kinds" in error
    for line in (
        "evaluations by default: likely",
        "--evaluate-stochastic: drawn",
        "--evaluate-env-kwargs wind=0: harder",
    ):
        assert f"\n  {line}\n" in error
    again = run_with(tmp_path / "again", [2.0], seed=4, evaluate_stochastic=True)
    (setting,) = compared(capsys, drawn, again)["settings"]
    assert setting["seeds"] == 2


def test_training_scores_over_different_numbers_of_episodes_are_not_compared(
    tmp_path: Path, capsys: Capture
) -> None:
    reports = [{"env_steps": 5, "wall_s": 1.0, "return_mean": 1.0}]
    one = make_run(tmp_path / "one", reports, seed=1)
    short = make_run(tmp_path / "short", reports, seed=2, metrics_window=10)
    assert main(["compare", one, short]) == 2
    error = capsys.readouterr().err
    assert "\n  --metrics-window 100: one\n  --metrics-window 10: short\n" in error
    evaluated = [
        run_with(tmp_path / f"evaluated-{window}", [1.0], seed=window, metrics_window=window)
        for window in (10, 100)
    ]
    assert compared(capsys, *evaluated)["settings"][0]["seeds"] == 2


def test_a_setting_that_nothing_tells_apart_has_a_label(tmp_path: Path, capsys: Capture) -> None:
    runs = [run_with(tmp_path / f"{n}", [1.0], seed=n, learning_rate=0.5) for n in (1, 2)]
    for by, label in ((["learning-rate"], "learning rate 0.5"), (["policy"], "all runs")):
        (setting,) = compared(capsys, *runs, "--by", *by)["settings"]
        assert setting["label"] == label


def test_a_run_with_one_policy_has_no_empty_word_beside_one_with_several(
    tmp_path: Path, capsys: Capture
) -> None:
    own = {"eval_env_steps": 90, "eval_return_mean": 5.0, "episodes": 3.0, "updates": 2.0}
    report = {f"policy_{i}/{name}": value for i in (0, 1) for name, value in own.items()}
    several = make_run(tmp_path / "several", [{"env_steps": 100, "wall_s": 1.0, **report}], seed=1)
    alone = run_with(tmp_path / "alone", [1.0], seed=2, learning_rate=0.5)
    labels = [setting["label"] for setting in compared(capsys, several, alone)["settings"]]
    assert labels == [
        *(f"policy_{i}, learning rate default" for i in (0, 1)),
        "learning rate 0.5",
    ]


def test_atari_games_have_the_published_scale_unless_another_is_given() -> None:
    found = scales(["ALE/Pong-v5", "ALE/Breakout-v5", "CartPole-v1"], {"ALE/Pong-v5": "0..21"})
    assert found["ALE/Pong-v5"][:2] == (0.0, 21.0) and "CartPole-v1" not in found
    assert found["ALE/Breakout-v5"](np.array([1.7, 30.5])).tolist() == [0.0, 1.0]
    assert len(ATARI) == 57 and all(low < high for low, high in ATARI.values())
    with pytest.raises(ConfigError, match="no run is in ALE/Pong"):
        scales(["CartPole-v1"], {"ALE/Pong-v5": "0..21"})


def test_the_games_of_the_published_scale_exist() -> None:
    ale = pytest.importorskip("ale_py")
    import gymnasium

    gymnasium.register_envs(ale)
    known = set(gymnasium.registry)
    assert {f"ALE/{game}-v5" for game in ATARI} - known == set()


def test_runs_without_evaluations_are_compared_by_their_training(
    tmp_path: Path, capsys: Capture
) -> None:
    """All of them, although one has evaluations, and a note says so."""
    reports = [{"env_steps": 100 * i, "wall_s": 1.0, "return_mean": float(i)} for i in range(1, 4)]
    runs = [make_run(tmp_path / "a", reports, learning_rate=0.1)]
    runs += [run_with(tmp_path / "b", [10.0, 200.0], learning_rate=0.2)]
    result = compared(capsys, *runs)
    assert [setting["mean"]["value"] for setting in result["settings"]] == [3.0, 1.0]
    assert result["score"]["of"] == "mean of training episodes"
    assert any("a has no evaluations" in note for note in result["notes"])
    (setting,) = compared(capsys, runs[0], "--at", "250")["settings"]
    assert setting["runs"][0]["return"] == 2.0

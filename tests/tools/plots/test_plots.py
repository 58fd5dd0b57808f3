"""`sampleforge plot`: runs, and settings with several seeds, in one file."""

import dataclasses
import math
import re
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.tools.plots.curves import (
    RESAMPLES,
    aligned,
    mean_and_interval,
    read_curves,
    settings_of,
    smoothed,
)
from tests.support.reports import make_run


def reports(count, level=10.0, **more):
    for i in range(count):
        mean = None if i == 0 else level * i
        values = {"return_mean": mean, "return_std": mean, "frames_per_s": 50.0, **more}
        yield {"env_steps": 100 * i, "wall_s": float(i), **values}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """`drawn(*runs, *flags)`: the figure that the command draws."""
    module = pytest.importorskip("matplotlib.figure")
    figures = []
    monkeypatch.setattr(module.Figure, "savefig", lambda self, *_, **__: figures.append(self))

    def draw(*words):
        assert main(["plot", *words, "--out", str(tmp_path / "x.png")]) == 0
        return figures[-1]

    return draw


def panels(figure):
    return {axis.get_title(): axis for axis in figure.axes}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.long
@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_several_runs_are_drawn_into_one_file(tmp_path, name):
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / f"run-{i}", reports(1 + 20 * i)) for i in range(3)]
    out = tmp_path / name
    assert main(["plot", *runs, "--out", str(out), "--no-group"]) == 0
    assert out.stat().st_size > 10_000
    if out.suffix == ".svg":
        text = out.read_text()
        assert all(f"run-{i}" in text for i in range(3)) and "CartPole-v1, appo" in text


def test_a_metric_of_a_callback_with_the_name_of_an_evaluation_is_none(tmp_path, drawn):
    """An evaluation has the env steps of its weights, too."""
    own = list(reports(9, eval_return_mean=5.0))
    run = make_run(tmp_path / "a", own)
    assert set(panels(drawn(run))) >= {"return, mean of 100 episodes", "return"}
    both = make_run(tmp_path / "b", [*own[:5], {**own[5], "eval_env_steps": 450}, *own[6:]])
    figure = drawn(run, both, "--no-group")
    _, _, dots = panels(figure)["return, mean of 100 episodes; dots: evaluated"].get_lines()
    assert dots.get_xydata().tolist() == [[450, 5]]


def test_seeds_of_a_setting_are_a_mean_within_their_range(tmp_path, drawn):
    """Three seeds of one setting and one of another; what differs between the two is named."""
    levels = (8.0, 10.0, 15.0)
    runs = [
        make_run(tmp_path / f"s{seed}", reports(21, level), seed=seed, learning_rate=0.01)
        for seed, level in enumerate(levels)
    ]
    runs.append(make_run(tmp_path / "other", reports(11), seed=0, learning_rate=0.5, rollout=64))
    figure = drawn(*runs)
    assert legend(figure) == [
        "rollout default, learning rate 0.01 (3 seeds)",
        "rollout 64, learning rate 0.5 (other)",
    ]
    axis = panels(figure)["return, mean of 100 episodes"]
    *seeds, mean, other = axis.get_lines()
    assert [line.get_ydata()[-1] for line in seeds] == [20 * level for level in levels]
    x, y = mean.get_data()
    assert x[-1] == 2000 and y == pytest.approx(np.mean(levels) * x / 100)
    assert other.get_xdata()[-1] == 1000 and other.get_color() != mean.get_color()
    (band,) = axis.collections
    corners = band.get_paths()[0].vertices
    at_end = corners[corners[:, 0] == 2000][:, 1]
    assert at_end.min() == pytest.approx(20 * 8) and at_end.max() == pytest.approx(20 * 15)
    assert "mean of 1 to 3 seeds" in figure.get_suptitle()


def test_only_panels_with_values_are_drawn(tmp_path, drawn):
    ppo = make_run(tmp_path / "ppo", reports(9, policy_loss=0.1, loss=3.0, policy_lag_mean=0.0))
    assert set(panels(drawn(ppo))) == {
        *("return, mean of 100 episodes", "return", "policy loss", "throughput, env frames/s"),
    }
    replay = make_run(tmp_path / "q", reports(9, loss=0.5, q_mean=1.0, sample_age_mean=3.0))
    titles = set(panels(drawn(replay)))
    assert {"loss", "mean Q-value", "age of samples, env steps collected since"} <= titles
    lagging = make_run(tmp_path / "lag", reports(9, policy_lag_mean=2.0, policy_lag_max=9.0))
    axis = panels(drawn(lagging))["policy lag, versions"]
    assert [line.get_ydata()[-1] for line in axis.get_lines()] == [2.0, 9.0]


@pytest.mark.parametrize("policies", [(), ("one", "two", "three")])
def test_reading_curves_holds_only_what_figures_show(tmp_path, policies):
    """A day of training has 17,000 reports."""
    own = {f"other_{number}": 0.5 + number for number in range(100)} | {"value_loss": 0.25}
    more = {
        f"{policy}/{name}": value + at
        for at, policy in enumerate(policies)
        for name, value in {"episodes": 3.0, "updates": 2.0, **own}.items()
    }
    run = make_run(tmp_path / "run", reports(300, **(more or own)))
    read_curves(Path(run))  # what is imported and cached once
    tracemalloc.start()
    try:
        curves = read_curves(Path(run))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [each.policy for each in curves] == sorted(policies or [""])
    assert {each.series("value_loss")[-1] for each in curves} == {
        0.25 + at for at in range(len(curves))
    }
    assert held / len(curves) < 300 * 1500


def test_axes_are_logarithmic_and_curves_smoothed_where_asked(tmp_path, drawn):
    run = make_run(tmp_path / "a", reports(30, value_loss=0.5, policy_loss=-0.1))
    axes = panels(drawn(run, "--log-x", "--log-y", "--smooth", "0.9"))
    assert {axis.get_xscale() for axis in axes.values()} == {"log"}
    scales = {name: axis.get_yscale() for name, axis in axes.items()}
    assert scales["value loss"] == "log" and scales["policy loss"] == "symlog"
    raw, smooth = axes["return"].get_lines()
    assert raw.get_ydata()[-1] == 290.0 and smooth.get_ydata()[-1] < 250.0


def test_smoothing_is_the_weighted_mean_of_the_values_so_far():
    values, weight = [3.0, math.nan, 5.0, -1.0], 0.75
    known = [(0, 3.0), (2, 5.0), (3, -1.0)]
    result = smoothed(np.array(values), weight)
    assert math.isnan(result[1])
    for at in range(1, 4):
        weights = [weight ** (at - 1 - i) for i in range(at)]
        by_hand = sum(w * v for w, (_, v) in zip(weights, known[:at], strict=True)) / sum(weights)
        assert result[known[at - 1][0]] == pytest.approx(by_hand)
    assert smoothed(np.array(values), 0.0)[2:].tolist() == [5.0, -1.0]


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says():
    """And never leaves the range of the runs, where a deviation around the mean would."""
    random = np.random.default_rng(3)
    returns = np.minimum(500.0, random.normal(480.0, 40.0, (20, 400)))
    mean, low, high = mean_and_interval(returns)
    assert (returns.min(axis=0) <= low).all() and (high <= returns.max(axis=0)).all()
    assert (low <= mean).all() and (mean <= high).all()
    truth = np.minimum(500.0, np.random.default_rng(4).normal(480.0, 40.0, 10**6)).mean()
    assert 0.88 < ((low <= truth) & (truth <= high)).mean() < 0.98


def test_the_interval_is_that_of_the_means_of_resampled_runs():
    values = np.random.default_rng(5).normal(size=(7, 3))
    drawn = np.random.default_rng(0).integers(0, 7, (RESAMPLES, 7))
    means = [[np.mean([values[run, at] for run in row]) for at in range(3)] for row in drawn]
    mean, low, high = mean_and_interval(values)
    assert mean == pytest.approx(values.mean(axis=0))
    assert np.stack([low, high]) == pytest.approx(np.quantile(means, (0.025, 0.975), axis=0))


def test_the_interval_of_the_mean_of_many_episodes_is_that_of_the_normal_distribution():
    returns = np.random.default_rng(6).normal(10.0, 2.0, (2000, 1))
    mean, low, high = mean_and_interval(returns)
    half = 1.96 * returns.std() / math.sqrt(2000)
    assert [mean[0] - low[0], high[0] - mean[0]] == pytest.approx([half, half], rel=0.15)


def test_lines_are_compared_only_where_all_of_them_are():
    a = np.array([0.0, 10.0]), np.array([0.0, 1.0])
    b = np.array([5.0, 20.0]), np.array([2.0, 5.0])
    x, y = aligned([a, b])
    assert x.tolist() == [0.0, 5.0, 10.0, 20.0]
    assert np.isfinite(y).all(axis=0).tolist() == [False, True, True, False]
    assert y[:, 1:3].tolist() == [[0.5, 1.0], [2.0, 3.0]]


def test_reporting_and_places_make_no_other_setting(tmp_path):
    paths = [
        make_run(tmp_path / "a", reports(3), seed=1),
        make_run(tmp_path / "b", reports(3), seed=2, report_interval=1.0, track=("csv",)),
    ]
    runs = [curves for path in paths for curves in read_curves(tmp_path / path)]
    assert [len(setting.runs) for setting in settings_of(runs)] == [2]
    kept = [
        dataclasses.replace(run, config={**run.config, "save_replay": bool(n)})
        for n, run in enumerate(runs)
    ]
    assert [len(setting.runs) for setting in settings_of(kept)] == [2]


def test_runs_of_an_earlier_version_are_of_the_same_setting(tmp_path):
    """Their config.yaml has not the fields that are newer, and others by their former names."""
    own = {"evaluate_interval": 100, "evaluate_env": "A-v0"}
    runs = [make_run(tmp_path / f"{n}", reports(3), **own) for n in range(2)]
    file = tmp_path / "0" / "config.yaml"
    lines = file.read_text().replace("evaluate_env:", "evaluation_env:").splitlines(keepends=True)
    earlier = [line for line in lines if not line.startswith(("action_repeat:", "reward_clip:"))]
    assert len(earlier) == len(lines) - 2
    file.write_text("".join(earlier))
    (old, new) = (curves for run in runs for curves in read_curves(Path(run)))
    (setting,) = settings_of([old, new])
    assert len(setting.runs) == 2
    assert old.config["evaluate_env"] == "A-v0" and {"action_repeat", "reward_clip"} <= old.given


@pytest.mark.long
def test_a_dollar_in_the_name_of_a_run_is_a_letter(tmp_path):
    """matplotlib reads formulas between dollars, and fails at one that is none."""
    pytest.importorskip("matplotlib")
    names = [r"cost $\frac{", "a$b$c"]
    runs = [make_run(tmp_path / name, reports(3)) for name in names]
    out = tmp_path / "x.svg"
    assert main(["plot", *runs, "--out", str(out), "--no-group", "--log-x"]) == 0
    text = re.sub("<!--.*?-->", "", out.read_text(), flags=re.DOTALL)
    assert all(name in text for name in names)
    assert "mathdefault" not in text  # the numbers of the axes are formulas, and are drawn so


DAMAGED = {
    "a list": "[1, 2]",
    "null": "null",
    "no axes": '{"return_mean": 1.0}',
    "a text for a number": '{"env_steps": 5, "wall_s": 1.0, "return_mean": "x"}',
    "a text for the steps": '{"env_steps": "x", "wall_s": 1.0}',
    "null for the time": '{"env_steps": 5, "wall_s": null}',
    "an object": '{"env_steps": 5, "wall_s": 1.0, "return_mean": {}}',
    "deep": "[" * 100_000,
    "5,000 digits": '{"env_steps": 5, "wall_s": ' + "9" * 5000 + "}",
    "400 digits": '{"env_steps": 5, "wall_s": ' + "9" * 400 + "}",
    "zeros": "\0" * 50,
    "another encoding": "\udcff\udcfe",
}


@pytest.mark.long
@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_report_is_left_out_and_told(tmp_path, capsys, drawn, line):
    run = make_run(tmp_path / "run", reports(3))
    file = tmp_path / "run" / "metrics.jsonl"
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, line.encode(errors="surrogateescape"), b"\n", *rest]))
    (curve,) = panels(drawn(run))["return"].lines[:1]
    assert list(curve.get_ydata()) == [10.0, 20.0]
    told = capsys.readouterr().err
    assert "Warning: " in told and "metrics.jsonl: line 2 of 4 left out" in told


def test_a_return_near_the_largest_float_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run", [*reports(3), *reports(1, env_steps=500, return_mean=1e308)])
    assert main(["plot", run, "--out", str(tmp_path / "x.png")]) == 0


def test_a_run_without_reports_is_refused(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["plot", make_run(tmp_path / "a", []), "--out", str(tmp_path / "x.png")]) == 2
    assert "has not reported yet" in capsys.readouterr().err


@pytest.mark.parametrize("written", [None, '{"env_steps": 1'])
def test_a_run_without_reports_is_left_out_beside_others(tmp_path, capsys, drawn, written):
    new, old = make_run(tmp_path / "a", []), make_run(tmp_path / "b", reports(3))
    if written is not None:  # killed within its first report
        (tmp_path / "a" / "metrics.jsonl").write_text(written)
    assert panels(drawn(new, old)).keys() == panels(drawn(old)).keys()
    assert f"Warning: {new}: the run has not reported yet; it is left out" in (
        capsys.readouterr().err
    )


def test_flags_of_learning_curves_are_refused_for_other_figures(tmp_path, capsys):
    run = make_run(tmp_path / "a", reports(3))
    (tmp_path / "a" / "lineage.jsonl").touch()
    words = ["plot", run, "--out", str(tmp_path / "x.png")]
    assert main([*words, "--smooth", "0.5"]) == 2
    assert "--smooth 0.5 is for learning curves" in capsys.readouterr().err
    assert main([*words, "--smooth", "1"]) == 2


def test_without_matplotlib_the_command_that_installs_it_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = make_run(tmp_path / "a", reports(2))
    assert main(["plot", run, "--out", str(tmp_path / "x.png")]) == 2
    assert 'pip install "sampleforge[plot]"' in capsys.readouterr().err


def test_returns_are_drawn_after_each_episode(tmp_path, drawn):
    """From the first report on that has them, and of Ape-X those of rows that explore least."""
    run = make_run(tmp_path / "run", reports(4), metrics_window=2)
    head = (
        '#{"t_start": 0.0, "env_id": "E", "every": 1}\nr,l,t,env_steps,episode,actor,env,epsilon\n'
    )
    episodes = [(1, 50), (2, 60), (4, 100), (8, 150), (16, 250)]
    lines = [f"{r},1,0.5,{at},{n},0,0,0.1\n" for n, (r, at) in enumerate(episodes)]
    lines += [f"99,1,0.5,200,9,0,{row},0.{row}\n" for row in (2, 3)]
    (tmp_path / "run" / "episodes.csv").write_text(head + "".join(lines) + "7,1,0.5")
    (curve,) = panels(drawn(run))["return, mean of 2 episodes"].lines
    assert curve.get_xydata().tolist() == [[100, 3], [150, 6], [250, 12]]
    (curve, _) = panels(drawn(run, "--smooth", "0.5"))["return, mean of 2 episodes"].lines
    assert curve.get_xydata().tolist() == [[100, 10], [200, 20], [300, 30]]


def test_a_return_that_no_episode_comes_after_is_drawn(tmp_path, drawn):
    """The first report that has it may be the last one, as that of a short run."""
    run = make_run(tmp_path / "run", reports(2), metrics_window=2)
    head = '#{"t_start": 0.0, "env_id": "E", "every": 1}\nr,l,t,env_steps,episode,actor,env\n'
    (tmp_path / "run" / "episodes.csv").write_text(head + "3,1,0.5,50,1,0,0\n5,1,0.5,60,2,0,1\n")
    (curve,) = panels(drawn(run))["return, mean of 2 episodes"].lines
    assert curve.get_xydata().tolist() == [[60, 4]]


def test_returns_that_no_report_has_are_drawn_smoothed_as_well(tmp_path, drawn):
    """A run that is over before each env row has ended an episode has an early mean only."""
    values = [{"env_steps": 100 * i, "wall_s": float(i), "return_mean_early": 5.0} for i in (1, 2)]
    run = make_run(tmp_path / "run", values)
    head = '#{"t_start": 0.0, "env_id": "X-v0", "every": 1}\nr,l,t,env_steps,episode,actor,env\n'
    lines = [f"{i},1,{i / 10},{10 * i},{i},0,0\n" for i in range(1, 13)]
    (tmp_path / "run" / "episodes.csv").write_text(head + "".join(lines))
    axes = panels(drawn(run, "--smooth", "0.5", "--log-y"))
    assert axes["return"].lines[-1].get_ydata().tolist()[0] == 5.5
    assert axes["return"].get_yscale() == "log"


@pytest.mark.parametrize("flag", ["--log-y", "--log-x"])
def test_a_panel_without_a_point_has_logarithmic_axes(tmp_path, drawn, flag):
    """Its values are too large to be drawn."""
    values = [{"env_steps": 1, "wall_s": 1.0, "value_loss": 1e305, "frames_per_s": 5.0}]
    assert "value loss" in panels(drawn(make_run(tmp_path / "run", values), flag))


def test_a_policy_without_an_episode_has_not_the_return_of_the_run(tmp_path):
    ones = {"one/episodes": 3.0, "one/updates": 2.0, "one/return_mean": 5.0}
    others = {"two/episodes": 0.0, "two/updates": 0.0}
    make_run(tmp_path / "run", reports(3, **ones, **others))
    one, two = read_curves(tmp_path / "run")
    assert one.series("return_mean").tolist() == [5.0] * 3 and not two.has("return_mean")
    assert two.series("frames_per_s").tolist() == [50.0] * 3, "what the policies share"


def test_a_run_that_is_given_twice_is_not_two_seeds(tmp_path, capsys):
    run = make_run(tmp_path / "run", reports(4))
    again = tmp_path / "elsewhere" / ".." / "run"
    (tmp_path / "elsewhere").mkdir()
    assert main(["plot", str(run), str(again), "--out", str(tmp_path / "x.png")]) == 2
    assert "is given twice, and would count as two seeds" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()

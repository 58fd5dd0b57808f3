"""`sampleforge plot` draws the lineage of a population."""

import sys

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.tools.plots.descent import History
from sampleforge.tools.plots.lineage import changing
from sampleforge.tools.plots.lineage_lanes import lane_order
from tests.support.populations import simulated_population, write_lineage
from tests.support.reports import make_run


def plotted(tmp_path, events, name="lineage.svg"):
    pytest.importorskip("matplotlib")
    out = tmp_path / name
    folder = write_lineage(tmp_path / "population", events)
    assert main(["plot", str(folder), "--out", str(out)]) == 0
    return out


@pytest.mark.long
@pytest.mark.parametrize("members", [1, 4, 8, 32])
def test_a_population_is_recognised_and_drawn(tmp_path, members):
    out = plotted(tmp_path, simulated_population(members, 12))
    text = out.read_text()
    assert f"population, {members} members" in text and "ancestry of the best" in text
    if members > 1:
        assert "learning rate" in text and "1 − gamma" in text and "clip ratio" not in text


@pytest.mark.long
def test_a_population_is_drawn_as_a_picture(tmp_path):
    out = plotted(tmp_path, simulated_population(8, 12, silent=2), "lineage.png")
    assert out.stat().st_size > 50_000


@pytest.mark.long
def test_a_population_without_scores_is_drawn(tmp_path):
    events = simulated_population(4, 12)
    plotted(tmp_path, [event for event in events if event["event"] == "start"])


@pytest.mark.long
def test_objectives_that_are_far_too_low_leave_the_others_visible(tmp_path):
    events = simulated_population(4, 12)
    next(event for event in events if event["event"] == "score")["objective"] = -1e9
    plotted(tmp_path, events)


@pytest.mark.long
def test_negative_objectives_and_switches_are_drawn(tmp_path):
    events = simulated_population(4, 12)
    for event in events:
        event["hyperparameters"]["value_clip"] = event["member"] == "1"
        if "objective" in event:
            event["objective"] -= 1000.0
    assert "value clip" in plotted(tmp_path, events).read_text()


@pytest.mark.long
def test_the_curves_of_a_population_are_drawn_where_they_are_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    reports = [
        {"env_steps": i, "wall_s": float(i), "return_mean": 1.0, "frames_per_s": 100.0 + i}
        for i in range(3)
    ]
    run = make_run(tmp_path / "population", reports)
    write_lineage(tmp_path / "population", simulated_population(4, 5))
    out = tmp_path / "out.svg"
    assert main(["plot", run, "--out", str(out), "--figure", "curves"]) == 0
    assert "throughput" in out.read_text()
    assert main(["plot", run, "--out", str(out)]) == 0
    assert "CartPole-v1, appo, 4 members" in out.read_text()


def test_a_folder_without_a_lineage_is_refused_where_one_is_asked_for(tmp_path, capsys):
    run = make_run(tmp_path / "run", [])
    out = str(tmp_path / "out.svg")
    assert main(["plot", run, "--out", out, "--figure", "lineage"]) == 2
    assert "there is no lineage.jsonl" in capsys.readouterr().err
    assert main(["plot", run, run, "--out", out, "--figure", "lineage"]) == 2
    assert "draws one folder" in capsys.readouterr().err


def test_without_matplotlib_the_command_that_installs_it_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = write_lineage(tmp_path / "p", simulated_population(4, 3))
    assert main(["plot", str(folder), "--out", str(tmp_path / "x.png")]) == 2
    assert 'pip install "sampleforge[plot]"' in capsys.readouterr().err


def test_only_hyperparameters_that_differ_are_drawn():
    history = History(simulated_population(8, 12))
    assert changing(history) == ["learning_rate", "exploration_coeff", "gamma"]


def test_lanes_are_ordered_so_that_copies_cross_fewer_of_them():
    for seed in range(5):
        history = History(simulated_population(16, 20, seed))
        order = lane_order(history)
        assert sorted(order, key=int) == history.members

        def crossed(lanes, copies=history.copies):
            place = {member: lane for lane, member in enumerate(lanes)}
            return np.mean([abs(place[c.donor] - place[c.receiver]) for c in copies])

        assert crossed(order) < crossed(history.members)
        assert order == lane_order(history)

"""`sampleforge plot`: several runs into one file."""

import sys

import pytest

from sampleforge.cli import main
from tests.support.reports import make_run


def reports(count):
    for i in range(count):
        mean = None if i == 0 else 10.0 * i
        yield {"env_steps": 100 * i, "wall_s": float(i), "return_mean": mean, "return_std": mean}


@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_several_runs_are_drawn_into_one_file(tmp_path, name):
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / f"run-{i}", reports(1 + 20 * i)) for i in range(3)]
    out = tmp_path / name
    assert main(["plot", *runs, "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    if out.suffix == ".svg":
        text = out.read_text()
        assert all(f"run-{i}" in text for i in range(3)) and "CartPole-v1, appo" in text


@pytest.mark.parametrize(
    ("scalar", "title"), [("policy_lag_mean", "policy lag"), ("sample_age_mean", "age of s")]
)
def test_the_age_of_experience_is_drawn_as_policy_lag_or_sample_age(tmp_path, scalar, title):
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run", ({**report, scalar: 3.0} for report in reports(9)))
    out = tmp_path / "curves.svg"
    assert main(["plot", run, "--out", str(out)]) == 0
    assert f"<!-- {title}" in out.read_text()


def test_a_run_without_reports_is_refused(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["plot", make_run(tmp_path / "a", []), "--out", str(tmp_path / "x.png")]) == 2
    assert "has not reported yet" in capsys.readouterr().err


def test_without_matplotlib_the_command_that_installs_it_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run = make_run(tmp_path / "a", reports(2))
    assert main(["plot", run, "--out", str(tmp_path / "x.png")]) == 2
    assert 'pip install "sampleforge[plot]"' in capsys.readouterr().err

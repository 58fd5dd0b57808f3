"""Files that a figure or a table is written into: problems show before the work, and a result is
printed before its figure is drawn."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.tools.plots.figures import save_figure
from tests.support.reports import make_run

Capture = pytest.CaptureFixture[str]

COMMANDS = {
    "plot": ["plot", "a"],
    "compare": ["compare", "a", "b"],
    "tournament": ["tournament", "a", "b"],
    "estimate": ["estimate", "a", "data"],
}
"""None of these folders exists: what reads one refuses it."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("x.png").mkdir()
    assert main([*COMMANDS[command], "--out", "x.png"]) == 2
    assert "--out x.png: this is a folder" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # as in a folder of another user
        assert main([*COMMANDS[command], "--out", "y.png"]) == 2
    assert "--out y.png: you may not write there" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*COMMANDS[command], "--out", "y.png"]) == 2
    assert 'pip install "sampleforge[plot]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "export a --out x.onnx",
        "record a --out x",
        "record a",
        "card a",
        "card a --out x",
        "eval a --video x.mp4",
    ],
)
def test_a_policy_dataset_card_or_video_that_cannot_be_written_is_refused_before_the_work(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert main(words.split()) == 2
    assert "you may not write there; give another f" in capsys.readouterr().err


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure can be written."""
    pytest.importorskip("matplotlib")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sampleforge.tools.plots.figures.write_atomically", full)


def test_a_figure_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "x.png"
    out.write_text("before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"x\.png cannot be written: No space left"):
        save_figure(lambda make_figure: make_figure(), out)
    assert [*tmp_path.iterdir()] == [out] and out.read_text() == "before"


def fails_with_a_result(words: list[str], capsys: Capture) -> dict[str, Any]:
    """Run a command whose figure cannot be written; return the result that it prints."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "x.png cannot be written: No space left on device" in printed.err
    result: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
    return result


@pytest.mark.usefixtures("full_disk")
def test_a_comparison_is_not_lost_with_its_figure(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "a", [{"env_steps": 5, "wall_s": 1.0, "return_mean": 3.0}])
    words = ["compare", run, "--out", str(tmp_path / "x.png"), "--csv", str(tmp_path / "x.csv")]
    assert fails_with_a_result(words, capsys)["settings"][0]["mean"]["value"] == 3.0
    assert (tmp_path / "x.csv").read_text().startswith("setting,")


@pytest.mark.usefixtures("full_disk")
def test_a_tournament_is_not_lost_with_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("openskill")
    from sampleforge.tools.tournament.games import Game, PlayedGame, Standings

    standings = Standings("duel", ["one", "two"])
    for game in (Game(0, 1), Game(1, 0)) * 2:
        standings.add(PlayedGame(game, 0.5))
    monkeypatch.setattr(
        "sampleforge.tools.tournament.tournament.play_tournament", lambda *_, **__: standings
    )
    words = ["tournament", "a", "b", "--quiet", "--out", str(tmp_path / "x.png")]
    assert fails_with_a_result(words, capsys)["games"] == 4


@pytest.mark.usefixtures("full_disk")
def test_an_estimate_is_not_lost_with_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    found = {"warnings": [], "episodes": 7}
    estimation = "sampleforge.tools.estimate.estimation.estimate"
    monkeypatch.setattr(estimation, lambda *_, **__: found)
    monkeypatch.setattr(
        "sampleforge.tools.estimate.estimates.draw_estimates",
        lambda result, names, out: save_figure(lambda make_figure: make_figure(), out),
    )
    words = ["estimate", "a", "data", "--json", "--out", str(tmp_path / "x.png")]
    assert fails_with_a_result(words, capsys) == found


def test_a_table_and_a_figure_in_one_file_are_refused(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    out = str(tmp_path / "same.png")
    assert main(["compare", "a", "--out", out, "--csv", f"{tmp_path}/./same.png"]) == 2
    assert "the figure would replace the table" in capsys.readouterr().err
    (tmp_path / "x.csv").mkdir()
    assert main(["compare", "a", "--csv", str(tmp_path / "x.csv")]) == 2
    assert "x.csv: this is a folder" in capsys.readouterr().err


def test_a_table_that_cannot_be_written_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sampleforge.cli.compare.write_atomically", full)
    run = make_run(tmp_path / "a", [{"env_steps": 5, "wall_s": 1.0, "return_mean": 3.0}])
    assert main(["compare", run, "--csv", str(tmp_path / "x.csv")]) == 2
    printed = capsys.readouterr()
    assert "x.csv cannot be written: No space left on device" in printed.err
    assert json.loads(printed.out.splitlines()[-1])["settings"]

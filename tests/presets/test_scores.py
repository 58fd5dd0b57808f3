"""The measured scores of presets: stored, listed, and marked where the preset has changed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sampleforge import presets
from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.presets.scores import PresetScore, digest, read_scores, write_score
from tests.support import REPO

OF_SCORES = ("results/presets.md)", "results/crossq.md)", "docs/benchmarking.md)")
"""Ends of the rows of README's table that have scores."""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of presets with two in it, in the place of the packaged one."""
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    for algo in ("appo", "apex"):
        (tmp_path / algo).mkdir()
        (tmp_path / algo / "toy.yaml").write_text("# A toy.\nenv: CartPole-v1\ngamma: 0.9\n")
    return tmp_path


def measured(
    algo: str = "appo", returns: tuple[float, ...] = (500.0, 20.0, 480.5), variant: str = ""
) -> PresetScore:
    seeds = tuple(range(1, 1 + len(returns)))
    values: dict[str, Any] = {
        **{"algo": algo, "preset": "toy", "env": "CartPole-v1", "seeds": seeds},
        **{"returns": returns, "seconds": (150.0, 10.0, 180.0), "env_steps": (9, 9, 9)},
        **{"episodes": 100, "protocol": "raw rewards", "command": "train.py", "machine": "it"},
        **{"software": "torch", "commit": "abc", "date": "2026-01-02"},
    }
    return PresetScore(**values, settings=digest(algo, "toy"), variant=variant)


def test_the_list_has_the_median_over_the_seeds(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_score(measured(returns=(1.0, 2.0, 3.0)))
    write_score(measured())
    assert read_scores() == {("appo", "toy", ""): measured()}, "a later measurement replaces it"
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    apex, appo = (next(line for line in lines if line.split()[:1] == [a]) for a in ("apex", "appo"))
    measurement = "480.5 (3) 2 min"
    assert " ".join(appo.split()[3:]) == measurement
    assert apex.split()[-2:] == ["not", "measured"]
    assert not any("*" in line for line in lines)


def test_the_score_of_a_preset_that_has_changed_is_marked(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_score(measured())
    preset = toy / "appo" / "toy.yaml"
    preset.write_text("# Other words.\nenv: CartPole-v1\ngamma: 0.9\n")
    assert read_scores()["appo", "toy", ""].is_current
    preset.write_text("# Another discount.\nenv: CartPole-v1\ngamma: 0.8\n")
    assert main(["presets"]) == 0
    assert "480.5*" in capsys.readouterr().out


def test_a_preset_has_a_score_for_each_variant(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = measured(returns=(1.0, 2.0, 3.0), variant="heavy")
    write_score(other)
    write_score(measured())
    assert list(read_scores().values()) == [measured(), other]
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    appo = [line.split() for line in lines if line.split()[:1] == ["appo"]]
    assert [words[3] for words in appo] == ["480.5", "2"]


def test_damaged_scores_are_refused(toy: Path) -> None:
    write_score(measured())
    path = toy / "scores.jsonl"
    good = path.read_text()
    for bad in ("{", good.replace("[1, 2, 3]", "[1]"), good.replace('"commit": "abc", ', "")):
        path.write_text(bad)
        with pytest.raises(ConfigError, match=r"scores\.jsonl is damaged"):
            read_scores()


def test_packaged_scores_are_of_packaged_presets() -> None:
    for (algo, name, _), score in read_scores().items():
        assert name in presets.preset_names(algo)
        other = re.search(r"--env (\S+)", score.command)
        assert score.env == (other[1] if other else presets.preset_values(algo, name)["env"])
        assert score.commit and score.date and score.machine


def test_the_readme_has_no_score_of_fewer_than_three_seeds_without_saying_so() -> None:
    """A part of a cell, up to a semicolon, may say "one seed"; else its figures are of scores."""
    rows = (REPO / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split("|")[2] for row in rows if row.rstrip("| ").endswith(OF_SCORES)]
    parts = [part for cell in cells for part in cell.split(";")]
    named = [re.findall(r"([A-Z]\w+) (-?[\d,.]*\d)", part) for part in parts]
    assert sum(map(len, named)) >= 12
    unfounded = [
        f"{env} {figure}"
        for part, figures in zip(parts, named, strict=True)
        for env, figure in figures
        if "one seed" not in part and not is_measured(env, figure)
    ]
    assert unfounded == []


def is_measured(env: str, figure: str) -> bool:
    """Whether a score of three seeds or more, in an environment of this name, rounds to this."""
    rounding = 0.5 * 10 ** -len(figure.partition(".")[2]) + 1e-9
    return any(
        abs(score.score - float(figure.replace(",", ""))) <= rounding
        for score in read_scores().values()
        if len(score.seeds) >= 3 and re.fullmatch(rf"(.*/)?{env}(-v\d+)?", score.env)
    )


def test_a_figure_is_measured_if_a_score_of_three_seeds_rounds_to_it(toy: Path) -> None:
    write_score(measured(returns=(500.0, 20.0, 480.26)))
    assert is_measured("CartPole", "480") and is_measured("CartPole", "480.3")
    assert not is_measured("CartPole", "481") and not is_measured("CartPole", "480.2")
    assert not is_measured("Cart", "480")
    few = replace(
        measured(), seeds=(1, 2), returns=(7.0, 7.0), seconds=(1.0, 1.0), env_steps=(9, 9)
    )
    write_score(few)
    assert not is_measured("CartPole", "7")

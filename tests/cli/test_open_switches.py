"""Flags that are on, off or left open: a bool whose default depends on the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampleforge.cli import main
from sampleforge.cli.train import parse_config


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "async_rl", "separate"),
    [
        ("", None, None),
        ("--async-rl --model.separate-critic", True, True),
        ("--no-async-rl --model.no-separate-critic", False, False),
        ("--async_rl --model.separate_critic", True, True),
        ("--no_async_rl --model.no_separate_critic", False, False),
        ("--async-rl True --model.separate-critic False", True, False),
        ("--async-rl=False --model.separate-critic None", False, None),
        ("--model.separate-critic --async-rl", True, True),
    ],
)
def test_open_switches_are_typed_as_all_others(
    typed: str, async_rl: bool | None, separate: bool | None
) -> None:
    found = parse_config("appo", ["--env", "X-v0", *typed.split()])
    assert (found.async_rl, found.model.separate_critic) == (async_rl, separate)
    assert parse_config("apex", ["--env", "X-v0", "--no-value-rescaling"]).value_rescaling is False


@pytest.mark.long
def test_open_switches_go_over_those_of_files_and_presets(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("env: X-v0\nasync-rl: true\nmodel: {separate_critic: true}\n")
    args = ["--config", str(file)]
    found = parse_config("appo", args)
    assert (found.async_rl, found.model.separate_critic) == (True, True)
    found = parse_config("appo", [*args, "--no-async-rl", "--model.no-separate-critic"])
    assert (found.async_rl, found.model.separate_critic) == (False, False)
    found = parse_config("appo", [*args, "--async-rl", "None"])
    assert (found.async_rl, found.model.separate_critic) == (None, True)
    preset = ["--preset", "pong", "--model.separate-critic"]
    assert parse_config("appo", preset).async_rl is False
    assert parse_config("appo", [*preset, "--async-rl"]).async_rl is True
    assert parse_config("appo", preset).model.separate_critic is True


@pytest.mark.long
@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("--async", "--async-rl"),
        ("--no-async", "--no-async-rl"),
        ("--asinc-rl", "--async-rl"),
        ("--model.separate-critics", "--model.separate-critic"),
        ("--no-model.separate-critic", "--model.no-separate-critic"),
    ],
)
def test_unknown_flags_beside_them_are_answered_with_the_nearest(
    typed: str, suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "appo", "--env", "X-v0", typed]) == 2
    shown = capsys.readouterr().err
    assert typed in shown and suggested in shown.replace(typed, "", 1)


@pytest.mark.long
def test_help_shows_them_as_switches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "appo", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "--async-rl, --no-async-rl " in shown
    assert "--model.separate-critic, --model.no-separate-critic " in shown

"""The README tells the truth: its commands parse, its examples run, its two set-ups are CI's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sampleforge.cli.train import parse_config
from tests.litter import REPO

README = (REPO / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The words after ``program`` in every line of the README's shell blocks that runs it."""
    found = []
    for language, block in BLOCKS:
        lines = block.splitlines() if language == "bash" else []
        for part in (part for line in lines for part in line.split("&&")):
            words = shlex.split(part, comments=True)
            at = next((i for i, word in enumerate(words) if word.endswith(program)), None)
            if at is not None:
                found.append(words[at + 1 :])
    return found


@pytest.mark.parametrize("words", commands("train.py"), ids=" ".join)
def test_training_commands_parse(words: list[str]) -> None:
    assert parse_config(words[0], words[1:]).env


def test_the_readme_shows_the_verbs_that_there_are(run_cli) -> None:
    shown = {words[0] for words in commands("sampleforge")}
    listed = run_cli("--help").stdout
    assert shown >= {"eval", "plot", "tune", "doctor"}
    assert all(f"  {verb} " in listed for verb in shown)


def test_the_model_of_the_readme_learns_a_little(tmp_path: Path, run_cli) -> None:
    code = next(block for _, block in BLOCKS if block.startswith("# my_model.py"))
    (tmp_path / "my_model.py").write_text(code)
    flags = next(words for words in commands("train.py") if "my_model:Encoder" in words)
    limits = ["--train-for-env-steps", "3000", "--serial", "--run-dir", "run", "--quiet"]
    done = run_cli("train.py", *flags, *limits)
    assert done.returncode == 0, done.stderr
    assert run_cli("eval", "run", "--episodes", "3").returncode == 2, "a folder may be foreign"
    assert run_cli("eval", "run", "--episodes", "3", *flags[-2:]).returncode == 0


def test_ci_does_what_the_readme_says() -> None:
    """Every step of the README's second set-up is one of .ci/run, word for word."""
    setup = next(b for _, b in BLOCKS if "pytest" in b)
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert '-c constraints-cpu.txt -e ".[dev]"' in setup
    assert '-c constraints-cpu.txt -e ".[dev]"' in script
    assert "-m pytest -q" in setup and "-m pytest -q" in script

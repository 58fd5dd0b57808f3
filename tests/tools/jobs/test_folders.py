"""Folders of runs, sweeps and populations: no command writes into one of another kind."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.tools.jobs.jobs import JobsConfig
from sampleforge.tools.jobs.loop import launched_in

FILES = {
    "run": ["config.yaml", "results.json"],
    "sweep": ["sweep.yaml", "study.db", "results.json"],
    "population of runs": ["population.json", "results.json"],
}
ALGO = ["appo", "--env", "CartPole-v1", "--train-for-env-steps", "100"]
SPEC = """
algo: appo
config: {env: CartPole-v1, train_for_env_steps: 100}
search: {gamma: {low: 0.9, high: 0.99}}
"""
COMMANDS = {
    "run": ["train", *ALGO, "--serial", "--run-dir", "folder"],
    "sweep": ["sweep", "spec.yaml", "--folder", "folder"],
    "population of runs": [
        *("pbt", "--population", "2", "--folder", "folder", "--pbt-perturb", "learning-rate"),
        *ALGO,
    ],
}


@pytest.mark.parametrize(
    ("command", "kind"), [pair for pair in product(COMMANDS, FILES) if pair[0] != pair[1]]
)
def test_a_command_refuses_the_folder_of_another_kind_and_changes_nothing_in_it(
    command: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    Path("folder").mkdir()
    for name in FILES[kind]:
        Path("folder", name).write_text(f"{name} of the {kind}")
    before = {path: path.read_text() for path in Path("folder").rglob("*")}
    assert main(COMMANDS[command]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"is the folder of a {kind} (it has {FILES[kind][0]})" in error
    assert {path: path.read_text() for path in Path("folder").rglob("*")} == before


@pytest.mark.parametrize("command", ["sweep", "population of runs"])
def test_a_folder_whose_name_a_launcher_would_change_is_refused(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slurm and its local stand-in put the number of the job there: into another folder."""
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    words = ["100%j" if word == "folder" else word for word in COMMANDS[command]]
    assert main(words) == 2
    assert "%j stands for a number of the job" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["spec.yaml"]


def test_only_slurm_replaces_a_number_after_a_percent_sign(tmp_path: Path) -> None:
    """An earlier sweep of local jobs in such a folder can be resumed."""
    folder = tmp_path / "my%20runs"
    slurm = JobsConfig(launcher="slurm")
    with (
        pytest.raises(ConfigError, match="%2 stands for"),
        launched_in(folder, "sweep", slurm, 1, lambda path, jobs: Mock()),
    ):
        pass
    with launched_in(folder, "sweep", JobsConfig(), 1, lambda path, jobs: Mock()) as (_, jobs):
        jobs.close()
    assert folder.is_dir()

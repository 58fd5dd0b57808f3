"""`sampleforge tune --for return`: the budget is kept, the defaults come first, and what was found
can be used."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sampleforge.cli import main
from sampleforge.cli.train import parse_config
from sampleforge.tools.tune import returns
from sampleforge.tools.tune.returns import Budget
from tests.support.jobs import TrainingsAtOnce
from tests.support.processes import StartCli

DEFAULT_RATE = 5e-4
"""Learning rate of APPO for vectors."""


def as_the_rate(config: Any) -> list[dict[str, Any]]:
    """One report, whose return is larger the larger the learning rate is."""
    value = 100.0 * config.learning_rate / DEFAULT_RATE
    return [{"env_steps": 100, "wall_s": config.train_for_seconds, "return_mean": value}]


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings take no time, and a minute passes with each look at the clock."""
    pytest.importorskip("optuna")
    minutes = iter(range(1000))

    class Fast(Budget):
        def __init__(self, sweep: Any, total: float, each: float) -> None:
            super().__init__(sweep, total, each, lambda: 60.0 * next(minutes))

    monkeypatch.setattr(returns, "Budget", Fast)
    monkeypatch.setattr("sampleforge.tools.jobs.loop.POLL_S", 0.0)
    jobs = TrainingsAtOnce(as_the_rate)
    monkeypatch.setattr("sampleforge.tools.jobs.loop.open_jobs", lambda *_: jobs)
    monkeypatch.chdir(tmp_path)


COMMAND = ["tune", "CartPole-v1", "appo", "--for", "return", "--out", "tuned.yaml"]


@pytest.mark.long
def test_the_best_settings_are_written_beside_the_result_of_the_defaults(
    at_once: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "--minutes", "14", "--folder", "found"]
    assert main(command) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[-1] == "sampleforge train appo --config tuned.yaml"
    found = re.search(r"best return ([\d.,]+) \(trial (\d+)\); the defaults .*: 100", out)
    assert found is not None and float(found[1].replace(",", "")) > 100
    config = parse_config("appo", ["--config", "tuned.yaml"])
    assert config.learning_rate is not None and config.learning_rate > DEFAULT_RATE
    assert config.env == "CartPole-v1" and config.gae_lambda and config.minibatch_size
    results = json.loads((tmp_path / "found" / "results.json").read_text())
    assert results["best"]["params"]["learning_rate"] == config.learning_rate
    assert 3 < results["complete"] < 14, "the budget ends the search"
    assert (tmp_path / "found" / "sweep.yaml").is_file(), "a sweep like any other"
    (tmp_path / "tuned.yaml").unlink()
    assert main(command) == 0, "the same command goes on with the search"
    again = json.loads((tmp_path / "found" / "results.json").read_text())
    assert again["complete"] > results["complete"]
    assert "the defaults (trial 0000): 100" in capsys.readouterr().out


def test_mistakes_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = {
        "--minutes 0.1": "there is no time for two trials",
        "--minutes 1 --seconds-per-trial 50": "there is no time for two trials",
        "--allow-learning-changes": "is for --for speed",
    }
    for words, message in cases.items():
        assert main([*COMMAND, *words.split()]) == 2, words
        captured = capsys.readouterr()
        assert message in " ".join((captured.err + captured.out).split()), words
    assert main(["tune", "CartPole-v1", "appo", "--minutes", "3"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.multiprocess(timeout=120)
def test_ctrl_c_keeps_what_was_found(start_cli: StartCli, tmp_path: Path) -> None:
    """And the last line is a command that trains with it."""
    pytest.importorskip("submitit")
    words = [*COMMAND, "--minutes", "5", "--seconds-per-trial", "1", "--folder", "found"]
    process = start_cli(*words)
    assert process.stdout is not None
    for line in process.stdout:
        if "trial 0000 complete" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "best return" in out and "the defaults (trial 0000)" in out
    command = out.splitlines()[-1].split()
    assert command == ["sampleforge", "train", "appo", "--config", "tuned.yaml"]
    config = parse_config("appo", ["--config", str(tmp_path / "tuned.yaml")])
    assert config.env == "CartPole-v1" and config.learning_rate and config.gae_lambda

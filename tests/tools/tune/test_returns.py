"""`sampleforge tune --for return`: the budget is kept, the defaults come first, and what was found
can be used."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sampleforge import presets
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
    assert main(command) == 0, "the same command goes on with the search, and replaces its file"
    again = json.loads((tmp_path / "found" / "results.json").read_text())
    assert again["complete"] > results["complete"]
    assert "the defaults (trial 0000): 100" in capsys.readouterr().out


@pytest.mark.long
def test_a_search_goes_on_in_another_budget_with_trials_of_the_same_length(
    at_once: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What makes it another search is refused with the words that are typed."""
    command = [*COMMAND, "--folder", "found"]
    assert main([*command, "--minutes", "6"]) == 0
    assert "trials of 18 s" in capsys.readouterr().out
    for other in ("--minutes 8", "--minutes 8 --jobs 2", "--minutes 8 --seconds-per-trial 18"):
        assert main([*command, *other.split()]) == 0, other
        assert "trials of 18 s" in capsys.readouterr().out, other
    assert main([*command, "--minutes", "8", "--seconds-per-trial", "20"]) == 2
    assert (
        "the search in found is of CartPole-v1 appo --seconds-per-trial 18, not of CartPole-v1 "
        "appo --seconds-per-trial 20; ask for the same to go on with it, or give another --folder"
    ) in capsys.readouterr().err
    (tmp_path / "tuned.yaml").unlink()
    assert main(["tune", "CartPole-v1", "pqn", *command[3:]]) == 2
    assert "18, not of CartPole-v1 pqn --seconds-per-trial 18;" in capsys.readouterr().err
    assert main([*command, "--minutes", "0.5"]) == 2
    assert "or give another --folder than found, whose trials" in capsys.readouterr().err


def test_a_file_that_the_search_has_not_written_is_not_replaced(
    at_once: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, out = [*COMMAND, "--minutes", "5", "--folder", "found"], tmp_path / "tuned.yaml"
    by_search = (
        "# by\n# `sampleforge tune CartPole-v1 appo --for return`.\n"
        '# The search is in "found"\nalgo: appo\n'
    )
    out.write_text(by_search)
    assert main(command) == 2, "there is no search yet that could go on"
    assert main(COMMAND) == 2
    assert "or --folder found to go on with its search" in capsys.readouterr().err
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "study.db").touch()
    (tmp_path / "found" / "sweep.yaml").touch()
    others = (
        "algo: appo\n",
        by_search.replace("appo --", "ddppo --"),
        by_search.replace('"found"', '"another"'),
        by_search.replace('"found"', "{"),
        f"algo: appo\n{by_search}",
    )
    for text in others:
        out.write_text(text)
        assert main(command) == 2
        error = " ".join(capsys.readouterr().err.split())
        expected = "does not say that `sampleforge tune CartPole-v1 appo --for return` in found has"
        assert expected in error
        assert out.read_text() == text
    assert main([*COMMAND[:-1], "nowhere/tuned.yaml"]) == 2
    assert "--out nowhere/tuned.yaml: there is no folder nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("goal", ["speed", "return"])
def test_a_file_that_may_not_be_written_is_refused_before_the_search(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    goal: str,
) -> None:
    """Not after it, when the minutes are spent."""
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    words = ["tune", "CartPole-v1", "appo", "--for", goal, "--out", str(tmp_path / "tuned.yaml")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"--out {tmp_path / 'tuned.yaml'}: you may not write there; give another" in error


@pytest.mark.long
def test_what_was_found_is_told_if_the_disk_is_full_at_the_end(
    at_once: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("sampleforge.tools.tune.config.write_atomically", full)
    assert main([*COMMAND, "--minutes", "5", "--folder", "found"]) == 1
    error = capsys.readouterr().err
    assert "--out tuned.yaml cannot be written: No space left on device" in error
    assert "learning_rate: " in error and "env: CartPole-v1" in error


@pytest.mark.parametrize("stop", ["", "stop: [return_mean>=100]\n"])
def test_trials_of_a_preset_have_the_stated_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: str
) -> None:
    """The conditions by which the preset ends a run are left out, which is said."""
    pytest.importorskip("optuna")
    own = tmp_path / "presets"
    (own / "appo").mkdir(parents=True)
    text = f"# A short run\ntrain_for_env_steps: 1000\nlearning_rate: 0.002\n{stop}"
    (own / "appo" / "short.yaml").write_text(text)
    monkeypatch.setattr(presets, "FOLDER", own)
    monkeypatch.setattr("sampleforge.tools.jobs.loop.POLL_S", 0.0)
    monkeypatch.chdir(tmp_path)
    trained: list[Any] = []

    def reports(config: Any) -> list[dict[str, Any]]:
        trained.append(config)
        return as_the_rate(config)

    class TwoSteps(Budget):
        @property
        def done(self) -> bool:
            return len(trained) == 2

    monkeypatch.setattr(returns, "Budget", TwoSteps)
    jobs = TrainingsAtOnce(reports)
    monkeypatch.setattr("sampleforge.tools.jobs.loop.open_jobs", lambda *_: jobs)
    assert main([*COMMAND, "--preset", "short", "--minutes", "2", "--folder", "found"]) == 0
    for config in trained:
        assert (config.train_for_env_steps, config.train_for_seconds, config.stop) == (None, 15, ())
    assert trained[0].learning_rate == 0.002, "the preset's"
    assert "--train-for-env-steps 1000" in capsys.readouterr().out


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

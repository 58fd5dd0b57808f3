"""What a run writes to goes away or is full: its terminal, its pipe, its folder, its disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sampleforge.run.folder.checkpoint import CheckpointStore
from tests.support.processes import RunCli, StartCli, end_session
from tests.support.runs import last_report, summary, train, until, until_trained, worker
from tests.support.variants import slow

WITHIN_S = 20.0
ASCII = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}
TRAIN_AND_EVALUATE = """
import sys
from sampleforge.cli import main

if __name__ == "__main__":
    words = sys.argv[1:]
    folder = words[words.index("--run-dir") + 1]
    sys.exit(main(words) or main(["eval", folder, "--episodes", "2"]))
"""
"""Both in one process, which has been started where the terminal is an ASCII one."""

pytestmark = pytest.mark.multiprocess(timeout=120)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that the test starts; they are ended after it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    assert [line for process in started for line in end_session(process)] == []


@pytest.mark.parametrize("both", [slow(False), True])
def test_a_run_outlives_the_reader_of_its_output(
    tmp_path: Path, shell: list[subprocess.Popen[str]], both: bool
) -> None:
    """As with `sampleforge train ... | head -3`; ``both``: stderr goes there too."""
    words = [word for word in train("CartPole-v1") if word != "--quiet"]
    command = [sys.executable, "-m", "sampleforge", *words, "--train-for-env-steps", "40000"]
    reader, writer = os.pipe()
    errors = tmp_path / "errors.txt"
    with errors.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer if both else file,
            text=True,
            start_new_session=True,
        )
    shell.append(process)
    os.close(writer)
    with os.fdopen(reader) as lines:
        next(lines)
    assert process.wait(3 * WITHIN_S) == 0, errors.read_text()
    found = summary(tmp_path / "run")
    assert found["status"] == "finished" and found["env_steps"] >= 40000
    assert CheckpointStore(tmp_path / "run" / "checkpoints", 1).load(log=print) is not None
    told = errors.read_text()
    assert both or ("stdout" in told and "log.txt" in told and "Traceback" not in told)
    assert "stdout" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("quiet", [False, slow(True)])
def test_a_folder_with_umlauts_is_written_to_an_ascii_terminal(
    run_cli: RunCli, tmp_path: Path, quiet: bool
) -> None:
    words = train("CartPole-v1", "--train-for-env-steps", "4000", run_dir="läufe/größe 1")
    words = words if quiet else [word for word in words if word != "--quiet"]
    (tmp_path / "commands.py").write_text(TRAIN_AND_EVALUATE)
    done = run_cli("commands.py", *words, env=ASCII, timeout=100)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Finished after" in done.stdout and "gr" in done.stdout
    assert summary(tmp_path / "läufe" / "größe 1")["status"] == "finished"
    assert json.loads(done.stdout.splitlines()[-1])["episodes"] == 2, "of the evaluation"


def test_a_folder_that_is_removed_ends_the_run_and_is_not_made_again(
    start_cli: StartCli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start_cli(*train("CartPole-v1", "--checkpoint-interval", "2"))
    until_trained(process, run)
    shutil.move(run, tmp_path / "moved")
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    last = stderr.rstrip().splitlines()[-1]
    assert f"{run}" in last and "removed" in last, stderr
    assert not run.exists()


@pytest.mark.parametrize("serial", [slow(True), False])
def test_a_run_outlives_its_working_directory(
    start_cli: StartCli, tmp_path: Path, serial: bool
) -> None:
    here, run = tmp_path / "here", tmp_path / "run"
    here.mkdir()
    more = ["--serial"] if serial else []
    words = train("CartPole-v1", "--train-for-env-steps", "60000", *more, run_dir=str(run))
    process = start_cli(*words, cwd=here)
    until_trained(process, run)
    here.rmdir()
    stdout, stderr = process.communicate(timeout=3 * WITHIN_S)
    assert process.returncode == 0, stderr
    assert "Finished after" in stdout and f"in {run}" in stdout
    assert summary(run)["status"] == "finished"


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    leave = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    command = ["bash", "-c", leave, "bash", sys.executable, "-m", "sampleforge", "envs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "The working directory has been removed" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_named_last(start_cli: StartCli, tmp_path: Path) -> None:
    """Everything that is written after it fails too, and hides it not."""
    run = tmp_path / "run"
    process = start_cli(*train("CartPole-v1"))
    until_trained(process, run)
    for each in (psutil.Process(process.pid), worker(process, "sampleforge: learner")):
        each.rlimit(psutil.RLIMIT_FSIZE, (1, 1))
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    last = stderr.rstrip().splitlines()[-1]
    assert "cannot write to the run folder; make room" in last, stderr
    # The file that was to be written next: in the middle of a report it may be the last of them.
    files = (run / "metrics.jsonl", run / "workers.json", run / "log.txt")
    assert any(f"'{file}'" in last for file in files), stderr
    assert "During handling" not in stderr


def test_reports_go_on_where_the_terminal_is_a_full_disk(
    tmp_path: Path, shell: list[subprocess.Popen[str]]
) -> None:
    words = [word for word in train("CartPole-v1") if word != "--quiet"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "sampleforge", *words],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    shell.append(process)
    until_trained(process, tmp_path / "run")
    steps = last_report(tmp_path / "run")["env_steps"]
    until(lambda: last_report(tmp_path / "run")["env_steps"] > steps, process)
    process.terminate()
    assert process.wait(WITHIN_S) == 143

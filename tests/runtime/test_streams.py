"""Streams that are closed before a command starts, as by ``>&-``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import summary, train

SCRIPT = """
import os, sys
from sampleforge.runtime.streams import open_closed_streams
open_closed_streams()
file = open("file", "w")
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
os.system("echo a child")
assert sys.stdin.read() == ""
file.write(f"{file.fileno()} {os.get_inheritable(1)}")
"""


def run(closed: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with some streams closed by the shell."""
    shell = f'exec "$@" {closed}'
    return subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_none_that_a_file_can_be_mistaken_for(
    tmp_path: Path, closed: str
) -> None:
    done = run(closed, ["-c", SCRIPT], tmp_path)
    assert done.returncode == 0, done
    number, inheritable = (tmp_path / "file").read_text().split()
    assert int(number) > 2 and inheritable == "True"
    out, err = (">&-" in closed.split()), ("2>&-" in closed.split())
    assert done.stdout == ("" if out else "to stdout\na child\n")
    assert done.stderr == ("" if err else "to stderr\n")


def test_help_is_no_error_where_stdout_is_closed(tmp_path: Path) -> None:
    done = run(">&-", ["-m", "sampleforge", "train", "--help"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.multiprocess(timeout=120)
def test_a_run_trains_where_all_streams_are_closed(tmp_path: Path) -> None:
    words = train("CartPole-v1", "--train-for-env-steps", "4000")
    done = run("<&- >&- 2>&-", ["-m", "sampleforge", *words], tmp_path)
    assert done.returncode == 0
    assert summary(tmp_path / "run")["status"] == "finished"
    assert "Finished after" in (tmp_path / "run" / "log.txt").read_text()

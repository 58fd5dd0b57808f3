"""The fork server starts wherever temporary files are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest

from sampleforge.runtime.processes import start_fork_server

PROGRAM = """
from sampleforge.runtime.processes import process_context, start_fork_server

if __name__ == "__main__":
    start_fork_server()
    process = process_context().Process(target=print, args=("it runs",))
    process.start()
    process.join()
"""


@pytest.mark.multiprocess(timeout=60)
def test_a_long_path_of_temporary_files_leaves_room_for_addresses(tmp_path: Path) -> None:
    script, long = tmp_path / "script.py", tmp_path / ("x" * 100)
    script.write_text(PROGRAM)
    long.mkdir()
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TMPDIR": str(long)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "it runs\n"
    assert list(long.iterdir()) == []


def test_threads_may_start_the_fork_server_at_once() -> None:
    """As sessions of several threads do; what one has put into its environment is not taken away by
    another."""
    together, errors = Barrier(4), []

    def start() -> None:
        try:
            for _ in range(50):
                together.wait(30)
                start_fork_server(("json",))
        except Exception as error:
            errors.append(error)
            together.abort()

    threads = [Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and "SAMPLEFORGE_FORK_SERVER_IMPORTS" not in os.environ

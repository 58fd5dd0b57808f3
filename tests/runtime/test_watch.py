"""The watch of a command that plays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support import REPO

PLAYS = """
import sys, time
from pathlib import Path
from sampleforge.runtime import watch

begun, resumed = map(Path, sys.argv[1:])
watch.WITHOUT_LOCK_S = 0.2
with watch.HangWatch("a command", 4.0) as hang:
    beats = 0
    while beats < 100:
        hang.alive()
        begun.touch()
        time.sleep(0.01)
        beats += resumed.exists()
"""


@pytest.mark.multiprocess
def test_a_command_that_ctrl_z_stops_for_longer_than_its_limit_goes_on(tmp_path: Path) -> None:
    begun, resumed = tmp_path / "begun", tmp_path / "resumed"
    words = [sys.executable, "-c", PLAYS, str(begun), str(resumed)]
    process = subprocess.Popen(words, cwd=REPO, stderr=subprocess.PIPE, text=True)
    try:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1.5)  # it has looked, and would end itself at the limit
        process.send_signal(signal.SIGTSTP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        time.sleep(5.5)  # longer than both of its limits
        resumed.touch()
        process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, stderr

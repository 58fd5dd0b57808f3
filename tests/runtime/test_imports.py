"""Imports beside other work, and a command that ends before they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sampleforge.runtime.imports import import_beside, is_importing

HELD = """
import os
os.close(os.open("begun", os.O_CREAT))
with open("pipe") as pipe:  # waits for a writer
    pipe.read()
"""
SCRIPT = """
import os, signal, sys, time
from sampleforge.cli import command
from sampleforge.runtime.imports import import_beside
import_beside("held")
while not os.path.exists("begun"):
    time.sleep(0.01)
command(["--version"])
"""


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module whose import lasts until something is written to its pipe."""
    (tmp_path / "held.py").write_text(HELD)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_import_beside_is_waited_for(held: Path) -> None:
    wait = import_beside("held")
    assert is_importing()
    (held / "pipe").write_text("go on")
    wait()
    assert "held" in sys.modules and not is_importing()
    del sys.modules["held"]


def test_what_an_import_beside_raises_is_raised_where_it_is_waited_for(held: Path) -> None:
    (held / "broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_beside("broken")()


def test_a_command_ends_while_an_import_lasts(held: Path) -> None:
    """As after Ctrl-C in the first seconds, while torch is imported."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (held / "begun").exists()
    assert done.returncode == 0 and done.stdout.startswith("SampleForge"), done

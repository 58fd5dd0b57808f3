"""What compilation would leave in a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

BAR = """
import threading
from sampleforge.runtime.torch_settings import tame_tqdm
restore = tame_tqdm()
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock as Lock
list(tqdm(range(3), disable=True))
list(tqdm(range(3)))
print(threading.active_count(), hasattr(Lock, "mp_lock"))
restore()
list(tqdm(range(3), disable=True))
print(tqdm.monitor_interval > 0, hasattr(Lock, "mp_lock"))
"""


def test_a_bar_of_tqdm_starts_no_thread_and_makes_no_named_semaphore() -> None:
    """The semaphore would be reported as leaked when a worker is killed that compiles."""
    pytest.importorskip("tqdm")
    done = subprocess.run([sys.executable, "-c", BAR], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "False", "True", "True"]

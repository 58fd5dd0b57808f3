"""A worker keeps the memory that it frees: allocating it again touches no new page."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from sampleforge.runtime.heap import keep_freed_memory

def update():
    arrays = [np.empty(1 << 20) for _ in range(5)]  # 8 MB each
    for array in arrays:
        array.fill(1.0)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    assert keep_freed_memory()
update()
update()
before = faults()
for _ in range(10):
    update()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    """Pages that ten updates of 40 MB touch for the first time, after two others."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    assert page_faults("default") > 10_000, "the loss that the setting prevents"
    assert page_faults("kept") < 100

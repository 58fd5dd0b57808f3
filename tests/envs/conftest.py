"""A fixture for tests of simulators that leave traces outside their process."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

import pytest


@pytest.fixture
def only_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No other test with this fixture runs meanwhile, in no worker of pytest-xdist: for 0.2 s
    a starting engine of ViZDoom has names in /dev/shm that nobody has mapped, and a test that
    looks for litter would find those of another."""
    with (tmp_path_factory.getbasetemp().parent / "engines.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

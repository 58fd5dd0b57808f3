"""A fixture for tests of simulators that leave traces outside their process."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

import pytest


@pytest.fixture
def only_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hold a lock, so that tests with this fixture run one at a time, also in different workers of
    pytest-xdist. For 0.2 s, a ViZDoom engine that starts has names in /dev/shm that no process has
    mapped, and another test that looks for litter would count them."""
    with (tmp_path_factory.getbasetemp().parent / "engines.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

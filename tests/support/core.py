"""The tests of the inner loop, `pytest -m core`: those in this process that take a moment.

A test is one of them by itself, unless it starts a command or is marked `multiprocess`, `slow`,
`gpu` or `long`: the last if it takes about `LONG_S` of processor time or more. A core test that has
become long fails, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONG_S = 0.5
LIMIT_S = 10 * LONG_S
"""Processor time at which a core test fails. The first of a process to use a library imports it,
and beside other programs everything takes up to three times as long."""
NOT_CORE_MARKS = {"multiprocess", "slow", "gpu", "long"}
NOT_CORE_FIXTURES = {"run_cli", "start_cli"}


def is_core(marks: Iterable[str], fixtures: Iterable[str]) -> bool:
    """Whether a test with these marks and fixtures belongs to the inner loop."""
    return not NOT_CORE_MARKS.intersection(marks) and not NOT_CORE_FIXTURES.intersection(fixtures)


@contextmanager
def momentary(test: str) -> Iterator[None]:
    """Hold a core test to its limit. Raises AssertionError if its body takes longer."""
    before = time.process_time()
    yield
    took = time.process_time() - before
    assert took < LIMIT_S, (
        f"{test} took {took:.1f} s of processor time: mark it `long`, or make it faster"
    )

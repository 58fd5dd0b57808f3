"""What the tests of plans share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from sampleforge.runtime.machine import Machine, assumed


@pytest.fixture
def cores() -> Iterator[Callable[[int], None]]:
    """`cores(n)`: plans are made for a machine with so many from now on."""
    with ExitStack() as stack:

        def set_to(count: int) -> None:
            stack.close()
            stack.enter_context(assumed(Machine(count)))

        yield set_to

"""The tests of the inner loop, `pytest -m core`: those in this process that take a moment.

A test is one of them unless it is marked `multiprocess`, `slow` or `gpu`, starts a command, or is
listed in tests/not_core.txt: these took `LIMIT_S` or more in one of their variants. The list is
made anew, from the times of a whole run, by

    python -m pytest -q -n 2 --dist worksteal --junitxml times.xml
    python -m tests.support.core times.xml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from tests.support import REPO

LIST = REPO / "tests" / "not_core.txt"
LIMIT_S = 0.3
NOT_CORE_MARKS = {"multiprocess", "slow", "gpu"}
NOT_CORE_FIXTURES = {"run_cli", "start_cli"}


def listed() -> frozenset[str]:
    """Return the tests that take too long, as `tests/a/test_b.py::test_c`."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def is_core(test: str, marks: Iterable[str], fixtures: Iterable[str], long: frozenset[str]) -> bool:
    """Whether a test belongs to the inner loop. ``test`` is named without its parameters; ``long``:
    the tests that take too long."""
    apart = NOT_CORE_MARKS.intersection(marks) or NOT_CORE_FIXTURES.intersection(fixtures)
    return not apart and test not in long


def too_long(times: str) -> list[str]:
    """Return the tests that take too long, sorted, given the times of a run as JUnit's XML."""
    return sorted(
        {
            f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].split('[')[0]}"
            for case in ElementTree.fromstring(times).iter("testcase")
            if float(case.attrib["time"]) >= LIMIT_S
        }
    )


if __name__ == "__main__":
    LIST.write_text("\n".join(too_long(Path(sys.argv[1]).read_text())) + "\n", encoding="utf-8")

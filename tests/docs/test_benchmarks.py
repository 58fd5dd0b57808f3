"""The benchmarks that the pages name are there, or the page says where they went."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import PAGES, REPO

BENCHMARKS = REPO / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("*.md"))
NAMED = re.compile(r"benchmarks/(\w+\.py)")
MOVED = re.compile(r"^.*(?:the history, at \w{7,}|is now `|`? is `).*$", re.MULTILINE)
"""A line that says of a script that it was retired, or what it is called now."""


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_every_benchmark_that_a_page_names_is_there_or_in_the_history(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    moved = "\n".join(MOVED.findall(text)) if page in RESULTS else ""
    named = set(NAMED.findall(text))
    gone = {name for name in named if not (BENCHMARKS / name).is_file() and name not in moved}
    assert gone == set(), "say in a line below the title what became of it"

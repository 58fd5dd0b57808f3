"""The pages name files that there are, and the reference has every setting."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from sampleforge.topologies.config import ALGOS
from tests.support import PAGES, REPO

TEXTS = {str(path.relative_to(REPO)): path.read_text(encoding="utf-8") for path in PAGES}
FOLDERS = ("sampleforge", "envs", "tests", "benchmarks", "examples", "docs")
FILE = rf"`((?:{'|'.join(FOLDERS)})/[\w/-]+\.\w+)"
RESULT = r"`([a-z_]+\.md)`"
"""A file of benchmarks/results, which pages of figures name without the folder."""
EXAMPLES = {"sampleforge/workers/mine.py", "envs/mine.py"}
"""Files that a reader is to write."""


@pytest.mark.parametrize("page", TEXTS)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    files = set(re.findall(FILE, TEXTS[page])) - EXAMPLES
    assert [file for file in sorted(files) if not (REPO / file).exists()] == []


@pytest.mark.parametrize("page", ["docs/recipes.md", "docs/benchmarking.md"])
def test_the_results_that_a_page_names_exist(page: str) -> None:
    results = REPO / "benchmarks" / "results"
    files = set(re.findall(RESULT, TEXTS[page]))
    assert files and [file for file in sorted(files) if not (results / file).is_file()] == []


def has_own_fields(cls: type[Any]) -> bool:
    """Whether a class is a dataclass with fields that its bases have not."""
    bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    return dataclasses.is_dataclass(cls) and bool(
        {field.name for field in dataclasses.fields(cls)} - inherited
    )


def test_the_reference_has_every_part_of_every_config() -> None:
    page = TEXTS["docs/reference/settings.md"]
    shown: set[str] = set()
    for target, options in re.findall(r"^::: (\S+)((?:\n .*)*)", page, re.MULTILINE):
        members = re.search(r"members: \[(.*)\]", options)
        names = members[1].split(", ") if members else [""]
        shown |= {f"{target}.{name}".rstrip(".") for name in names}
    wanted = {
        part
        for cls in ALGOS.values()
        for part in cls.__mro__
        if part is cls or (has_own_fields(part) and part.__module__ != cls.__module__)
    }
    lacking = {
        f"{part.__module__}.{part.__name__}"
        for part in wanted
        if not {part.__module__, f"{part.__module__}.{part.__name__}"} & shown
    }
    assert lacking == set()

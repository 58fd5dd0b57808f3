"""The pages name files that there are, and the reference has every setting."""

from __future__ import annotations

import dataclasses
import re
import runpy

import pytest
import yaml

from sampleforge.topologies.config import ALGOS
from tests.support import REPO
from tests.support.pages import TEXTS, blocks

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


def test_the_reference_has_every_flag_with_its_default() -> None:
    text = TEXTS["docs/reference/settings.md"]
    page = runpy.run_path(str(REPO / "benchmarks" / "settings.py"))["page"]
    assert text == page(), "python benchmarks/settings.py --write"
    fields = {field.name for cls in ALGOS.values() for field in dataclasses.fields(cls)}
    assert {f"--{name.replace('_', '-')}" for name in fields - {"model"}} <= set(
        re.findall(r"^\| `(--[\w-]+)` \|", text, re.MULTILINE)
    )


@pytest.mark.parametrize("page", TEXTS)
def test_the_code_of_a_page_can_be_read(page: str) -> None:
    for block in blocks(TEXTS[page]):
        if block.language == "python":
            compile(block.text, page, "exec")
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.text))

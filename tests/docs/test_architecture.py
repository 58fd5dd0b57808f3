"""The page on the architecture names files, and names in them, that there are."""

from __future__ import annotations

import re

import pytest

from tests.support import REPO

PAGE = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = r"`((?:sampleforge|tests|envs|benchmarks|examples)/[\w/]+\.(?:py|md))`"
FILES = sorted(file for file in set(re.findall(FILE, PAGE)) if not file.endswith("/mine.py"))
NAME = r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`"
NAMED = re.compile(rf"{NAME},?\s+(?:in\s+|\(){FILE}")
"""`name` in `file`, or `name` (`file`)."""


@pytest.mark.parametrize("file", FILES)
def test_every_file_that_the_page_names_exists(file: str) -> None:
    assert (REPO / file).is_file()


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMED.findall(PAGE))))
def test_every_name_is_in_the_file_that_the_page_says(name: str, file: str) -> None:
    last = name.split(".")[-1]
    assert re.search(rf"\b{last}\b", (REPO / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "name"), [("slots/wire.py", "SlotsGroup"), ("replay/wire.py", "ReplayGroup")]
)
def test_a_topology_with_several_policies_wires_them_where_the_page_says(
    file: str, name: str
) -> None:
    wire = REPO / "sampleforge" / "topologies" / file
    assert f"class {name}(GroupWiring[" in wire.read_text(encoding="utf-8")
    assert f"`{name}` (`{file}`)" in " ".join(PAGE.split())


def test_the_recipe_of_a_worker_names_all_that_the_builder_of_the_graph_needs() -> None:
    recipe = PAGE.split("### Add a worker\n")[1].split("###")[0]
    named = {name for name in ("Role", "COUNTERS", "Edge", "GraphBuilder") if f"`{name}" in recipe}
    assert named == {"Role", "COUNTERS", "Edge", "GraphBuilder"}


def test_the_reading_order_has_six_files() -> None:
    order = PAGE.split("## Six files to read first")[1].split("\n## ")[0]
    assert len(re.findall(rf"\| \d \| {FILE} \|", order)) == 6

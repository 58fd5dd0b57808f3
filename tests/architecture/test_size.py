"""The command that prints sizes counts right, and no page states what it counts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.size import files_of_checkout, imported, main, size_of
from tests.support import PAGES, REPO

STATED = re.compile(
    r"(?<![\w.-])\d[\d,.]*k?\s+(?:lines|files|modules|classes|protocols|functions|tests)\b"
    r"|\b(?:tests|suite|run|`\.ci/run`)[^.|\n]{0,20}\b(?:takes?|needs?)[^.|\n]{0,10}\s\d+\s+minutes"
)
"""A size of the code, or how long the tests take: both change with every commit."""

MOST_IMPORTS = 40
TEXT = '''"""A module."""
import os, sys
from functools import partial
from typing import Protocol


class Sized(Protocol[int]):
    def size(self) -> int: ...


class Box:
    def __init__(self, a, b, /, c, d, *, e, f, g, h, i=None): ...

    def twice(self):
        return once(self.size) + self.size()


def once(x):
    return partial(unused)
'''


def test_what_a_file_has_is_counted() -> None:
    path = "sampleforge/topologies/box.py"
    size = size_of({path: TEXT, "sampleforge/empty.py": ""})
    assert (size.lines, size.files, size.classes, size.protocols) == (19, 2, 2, 1)
    assert (size.functions, size.functions_used_once) == (4, 1)  # `once`; `size` twice
    assert size.constructors_beyond_limit == 1
    assert size.largest_constructor == (9, f"Box, {path}")
    assert size.most_imports == (4, path)
    assert size.partials_in_topologies == 1


def test_nothing_has_no_size() -> None:
    size = size_of({})
    assert (size.lines, size.largest_constructor, size.most_imports) == (0, (0, ""), (0, ""))


def test_every_file_of_the_checkout_is_in_one_part() -> None:
    parts = files_of_checkout(REPO)
    assert "sampleforge/tools/tune/speed.py" in parts["tools"]
    assert {"sampleforge/api.py", "envs/atari.py"} <= set(parts["trainer"])
    assert "tests/conftest.py" in parts["tests"]
    assert all(path.startswith("benchmarks/") for path in parts["benchmarks"])


def test_the_command_prints_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sampleforge" / "topologies").mkdir(parents=True)
    (tmp_path / "sampleforge" / "topologies" / "box.py").write_text(TEXT)
    main(tmp_path)
    printed = capsys.readouterr().out.split("\n\n")
    assert [paragraph.splitlines()[0] for paragraph in printed] == [
        *("trainer and tools", "trainer", "tools", "benchmarks", "tests")
    ]
    assert ["19" in paragraph for paragraph in printed] == [True, True, False, False, False]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_states_a_size_of_the_code(page) -> None:
    assert STATED.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The package has 63,322 lines in many places", True),
        ("442 files", True),
        ("The everyday run takes about 12 minutes on two cores", True),
        ("a dataset's folder, links in HDF5 files are not followed", False),
        ("at most 60 lines: see the linter", True),
        ("functions of one screen", False),
        ("`--train-for-seconds 60` takes a minute", False),
    ],
)
def test_stated_sizes_are_found(text: str, stated: bool) -> None:
    assert bool(STATED.search(text)) == stated


def test_a_file_of_the_package_imports_few_names() -> None:
    """What needs more does several things."""
    parts = files_of_checkout(REPO)
    counts = {
        path: imported(ast.parse(text))
        for path, text in {**parts["trainer"], **parts["tools"]}.items()
    }
    assert {path: count for path, count in counts.items() if count > MOST_IMPORTS} == {}

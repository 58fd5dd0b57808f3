"""docs/reliability.md names tests for each of its promises, and these tests exist."""

from __future__ import annotations

import ast
import re

from tests.support import REPO

PAGE = (REPO / "docs" / "reliability.md").read_text(encoding="utf-8")
PROMISES = range(1, 22)


def named(text: str) -> list[tuple[str, str]]:
    """File and function of each test that a text names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)


def test_each_promise_has_a_test() -> None:
    sections = re.split(r"^### (\d+)\. ", PAGE, flags=re.MULTILINE)[1:]
    found = dict(zip(map(int, sections[::2]), sections[1::2], strict=True))
    assert list(found) == list(PROMISES)
    assert [number for number in PROMISES if not named(found[number])] == []


def test_each_named_test_exists() -> None:
    tests: dict[str, set[str]] = {file: set() for file, _ in named(PAGE)}
    for file in tests:
        tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
        tests[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [f"{file}::{name}" for file, name in named(PAGE) if name not in tests[file]] == []
    assert PAGE.count("`tests/") - 1 == len(named(PAGE)), "each is written as file::test"

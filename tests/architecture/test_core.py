"""The selection of the inner loop has tests of every room of the package, and none that is long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPO
from tests.support.core import LIMIT_S, is_core, momentary

ROOMS = sorted(
    folder.relative_to(REPO / "sampleforge").as_posix()
    for folder in {file.parent for file in (REPO / "sampleforge").rglob("*.py")}
)
MARK = "pytest.mark."


def read_tests(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield each test of a module: its name, its marks and those of the module, its fixtures."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_module = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for name in marks_in(node.value)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {name for each in node.decorator_list for name in marks_in(each)}
            fixtures = {argument.arg for argument in node.args.args}
            test = f"{path.relative_to(REPO).as_posix()}::{node.name}"
            yield test, of_module | marks, fixtures


def marks_in(node: ast.AST) -> set[str]:
    """The names after `pytest.mark.`, also in a list of marks."""
    dotted = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    return {name.removeprefix(MARK) for name in dotted if name.startswith(MARK)}


def core_tests(room: str) -> list[str]:
    """The core tests of a room; of one whose tests lie with those of the room above it, of that."""
    folder = REPO / "tests" / room
    while not any(folder.glob("test_*.py")):
        folder = folder.parent
    return [
        test
        for path in folder.glob("test_*.py")
        for test, marks, fixtures in read_tests(path)
        if is_core(marks, fixtures)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_of_the_package_has_a_core_test(room: str) -> None:
    assert core_tests(room), f"no test of {room} is in this process and takes a moment"


def test_the_marker_is_given_as_the_rule_says(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("core") is not None


@pytest.mark.parametrize(
    ("marks", "fixtures", "core"),
    [
        ((), ("tmp_path",), True),
        (("parametrize",), (), True),
        (("multiprocess",), (), False),
        (("slow",), (), False),
        (("gpu",), (), False),
        (("parametrize", "long"), (), False),
        ((), ("run_cli",), False),
        ((), ("tmp_path", "start_cli"), False),
    ],
)
def test_processes_and_minutes_are_not_core(
    marks: tuple[str, ...], fixtures: tuple[str, ...], core: bool
) -> None:
    assert is_core(marks, fixtures) == core


def test_a_core_test_that_has_become_long_fails_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([10.0, 10.0 + LIMIT_S / 2, 20.0, 20.0 + LIMIT_S])
    said = pytest.raises(AssertionError, match=rf"test_b took {LIMIT_S} s .* mark it `long`")
    with monkeypatch.context() as patch:  # this test is measured as well
        patch.setattr("time.process_time", lambda: next(seconds))
        with momentary("tests/a.py::test_short"):
            pass
        with said, momentary("tests/a.py::test_b"):
            pass

"""Values are written out one by one: no literal is splatted into a call or another literal only to
keep several of them on one line."""

from __future__ import annotations

import ast

import pytest

from tests.support import REPO


def splatted(source: str) -> list[int]:
    """Return the line numbers of the literal tuples, lists and dicts that ``source`` splats."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):
            values = [node.value]
        elif isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg is None]
            values = [value for value in values if has_names(value)]
        elif isinstance(node, ast.Dict):
            values = [
                value for key, value in zip(node.keys, node.values, strict=True) if key is None
            ]
        else:
            continue
        lines += [v.lineno for v in values if isinstance(v, (ast.Tuple, ast.List, ast.Dict))]
    return sorted(lines)


def has_names(value: ast.expr) -> bool:
    """Whether a dict literal could be written as keyword arguments. One whose keys are computed
    could not."""
    return isinstance(value, ast.Dict) and all(
        key is None or isinstance(key, ast.Constant) for key in value.keys
    )


@pytest.mark.long
def test_literals_are_written_out() -> None:
    assert [
        f"{path.relative_to(REPO)}:{line}"
        for folder in ("sampleforge", "envs")
        for path in sorted((REPO / folder).rglob("*.py"))
        for line in splatted(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("a = (\n    *(1, 2),\n    3,\n)", [2]),
        ("call(*[1, 2], 3)", [1]),
        ("call(a=1, **{'b': 2})", [1]),
        ("a = {\n    'b': 1,\n    **{'c': 2},\n}", [3]),
        ("call(*values, **options)", []),
        ("call(*(v for v in values))", []),
        ("call(**{name: 1})", []),
        ("first, *rest = values", []),
    ],
)
def test_splatted_literals_are_found(source: str, lines: list[int]) -> None:
    assert splatted(source) == lines

"""A word means one thing: no two public classes of the package have the same name, and the words of
the glossary in docs/architecture.md are the names of the classes that they stand for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from tests.support import REPO


@cache
def places_of_classes() -> dict[str, list[str]]:
    """Name of each public class of the library and of the bundled environments -> its files."""
    places = defaultdict(list)
    for folder in ("sampleforge", "envs"):
        for path in sorted((REPO / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(REPO)))
    return dict(places)


@pytest.mark.long
def test_no_class_name_is_given_twice() -> None:
    places = places_of_classes()
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def glossary() -> dict[str, list[str]]:
    """The words of the glossary -> the classes in the third column."""
    page = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Glossary")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {word.strip(): re.findall(r"`(\w+)`", classes) for word, _, classes in rows[1:]}


def as_class_name(word: str) -> str:
    return "".join(part.capitalize() for part in word.split())


def test_the_glossary_names_classes_that_there_are() -> None:
    named = {name for classes in glossary().values() for name in classes}
    assert named - set(places_of_classes()) == set()
    assert len(named) > 30


def test_a_class_has_the_word_of_the_glossary_in_its_name() -> None:
    for words, classes in glossary().items():
        parts = [part.capitalize() for part in re.split(r"[, ]+", words)]
        assert all(any(part in name for part in parts) for name in classes), words


def test_a_word_that_is_the_name_of_a_class_stands_for_it() -> None:
    known = set(places_of_classes())
    for words, classes in glossary().items():
        same = {as_class_name(word) for word in words.split(", ")} & known
        assert not classes or same <= set(classes), words

"""A class name means one thing: no two public classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support import REPO


def places_of_classes() -> dict[str, list[str]]:
    """Name of each public class of the library and of the bundled environments -> its files."""
    places = defaultdict(list)
    for folder in ("sampleforge", "envs"):
        for path in sorted((REPO / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(REPO)))
    return dict(places)


def test_no_class_name_is_given_twice() -> None:
    places = places_of_classes()
    assert {name: found for name, found in places.items() if len(found) > 1} == {}

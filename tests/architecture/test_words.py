"""A class name means one thing: no two public classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support import REPO

TWICE = frozenset(
    {
        "Display",
        "Episode",
        "Estimate",
        "Evaluation",
        "Finding",
        "Game",
        "MakeWindows",
        "Owner",
        "Panel",
        "Played",
        "QFunction",
        "Rule",
        "Scale",
        "Score",
        "Setting",
        "Stage",
    }
)
"""Names that several classes still have. A name that has become unique leaves this set."""


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
    several = {name: places for name, places in places_of_classes().items() if len(places) > 1}
    assert {name: places for name, places in several.items() if name not in TWICE} == {}


def test_a_name_that_is_unique_is_not_excepted() -> None:
    places = places_of_classes()
    assert [name for name in sorted(TWICE) if len(places.get(name, ())) < 2] == []

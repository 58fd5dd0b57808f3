"""The reading of YAML from files that a user, or an unknown source, has written."""

from __future__ import annotations

from typing import Any

import yaml

from sampleforge.config import ConfigError

DEEPEST, MOST_VALUES = 50, 100_000
"""Of the values in a YAML text."""
_MERGE = "tag:yaml.org,2002:merge"


def parsed_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises ConfigError, with the lines, for a key that a mapping
    has twice, of which YAML would take the last; yaml.YAMLError for a text that is no YAML,
    ValueError for one that is nested, or long, beyond reason."""
    loader = _Loader(text)
    try:
        content = loader.get_single_data()
    finally:
        loader.dispose()
    _check_size(content)
    return content


class _Loader(yaml.SafeLoader):
    """Stops as soon as a text is nested beyond reason, or long: the time to parse brackets within
    brackets grows with the square of their number. Refuses keys that are given twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        self._nodes += 1
        if self._depth > DEEPEST or self._nodes > 2 * MOST_VALUES:  # keys are nodes as well
            raise _too_large()
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        # Here, and not when the values are made: by then merges have joined mappings.
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            name = (key.tag, key.value)
            if name in lines:
                first = lines[name]
                where = f"line {line}" if first == line else f"lines {first} and {line}"
                raise ConfigError(f"{key.value} is given twice ({where}); leave out one")
            lines[name] = line
        return node


def _too_large() -> ValueError:
    return ValueError(
        f"its values are nested more than {DEEPEST} deep, or more than {MOST_VALUES:,}"
    )


def _check_size(value: Any) -> None:
    """Raise ValueError for nesting or repetition beyond reason: YAML's aliases make a value of any
    size, even an endless one, out of a few lines."""
    waiting, seen = [(value, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_VALUES:
            raise _too_large()
        children = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            waiting += [(child, depth + 1) for child in children]

"""Flags that take ``key=value`` pairs, such as --env-kwargs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import yaml
from tyro.constructors import PrimitiveConstructorSpec

from sampleforge.config import in_yaml

Scalar = str | int | float | bool


def scalar(word: str) -> Scalar:
    """Return the number or the truth value that a word is in YAML (or 1e-4, which YAML reads as a
    string); otherwise the word itself."""
    with contextlib.suppress(yaml.YAMLError):
        value = yaml.safe_load(word)
        if isinstance(value, bool | int | float):
            return value
    with contextlib.suppress(ValueError):
        return float(word)
    return word


def json_value(word: str) -> Any:
    """Return what a word is in YAML: null, a list and a dict as well as what `scalar` returns.
    Raises ValueError for a list or a dict that does not end."""
    if word[:1] in ("[", "{"):
        try:
            return yaml.safe_load(word)
        except yaml.YAMLError as error:
            raise ValueError(f"{word} is no list or dict in YAML: {error}") from error
    return None if word in ("null", "~") else scalar(word)


def key_values(words: Sequence[str], read: Callable[[str], Any] = scalar) -> dict[str, Any]:
    """Return ``a=1 b=true``, or ``a 1 b true``, as a dict of what ``read`` makes of the words.
    Raises ValueError for a key without a value."""
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        key, equals, value = left.pop(0).partition("=")
        if not equals:
            if not left:
                raise ValueError(f"{key!r} has no value; write {key}=VALUE")
            value = left.pop(0)
        values[key] = read(value)
    return values


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _pairs(read: Callable[[str], Any]) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[KEY=VALUE ...]",
        instance_from_str=partial(key_values, read=read),
        is_instance=_is_dict,
        str_from_instance=lambda values: [f"{key}={in_yaml(v)}" for key, v in values.items()],
    )


KEY_VALUES, KEY_JSON = _pairs(scalar), _pairs(json_value)

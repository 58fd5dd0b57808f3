"""Flags that take ``key=value`` pairs, such as --env-kwargs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import yaml
from tyro.constructors import PrimitiveConstructorSpec

Scalar = str | int | float | bool


def key_values(words: Sequence[str]) -> dict[str, Scalar]:
    """Return ``a=1 b=true``, or ``a 1 b true``, as a dict. Raises ValueError for a key without a
    value."""
    values: dict[str, Scalar] = {}
    left = list(words)
    while left:
        key, equals, value = left.pop(0).partition("=")
        if not equals:
            if not left:
                raise ValueError(f"{key!r} has no value; write {key}=VALUE")
            value = left.pop(0)
        values[key] = scalar(value)
    return values


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


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


KEY_VALUES = PrimitiveConstructorSpec(
    nargs="*",
    metavar="[KEY=VALUE ...]",
    instance_from_str=key_values,
    is_instance=_is_dict,
    str_from_instance=lambda values: [f"{key}={value}" for key, value in values.items()],
)

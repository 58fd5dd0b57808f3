"""What a word of the command line says: a number, a truth value, a text, a list or dict in YAML,
pairs of KEY=VALUE."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import yaml
from tyro.constructors import PrimitiveConstructorSpec

from sampleforge.config import in_yaml
from sampleforge.runtime.yaml_text import parsed_yaml

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
    Raises ValueError for a list or a dict that does not end, or has a key twice."""
    if word[:1] in ("[", "{"):
        try:
            return parsed_yaml(word)
        except yaml.YAMLError as error:
            why = getattr(error, "problem", error)
            raise ValueError(f"{word} is no list or dict in YAML: {why}") from error
    return None if word in ("null", "~") else scalar(word)


def key_values(words: Sequence[str], read: Callable[[str], Any] = scalar) -> dict[str, Any]:
    """Return ``a=1 b=true``, or ``a 1 b true``, as a dict of what ``read`` makes of the words.
    Raises ValueError for a key without a value, or with two."""
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        key, equals, value = left.pop(0).partition("=")
        if not equals:
            if not left:
                raise ValueError(f"{key!r} has no value; write {key}=VALUE")
            value = left.pop(0)
        if key in values:
            raise ValueError(f"{key} is given twice; leave out one of the two values")
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


def run_or_runs(words: Sequence[str]) -> str | dict[str, str]:
    """Return RUN, or ``policy_0=RUN policy_1=RUN`` as a dict. Raises ValueError for others."""
    if len(words) == 1 and not re.match(r"\w+=", words[0]):
        return words[0]
    if not words or not all(re.match(r"\w+=.", word) for word in words):
        raise ValueError(f"{' '.join(words)!r} must be RUN, or POLICY=RUN for each of several")
    return key_values(words, str)


RUNS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs="*",
    metavar="RUN|POLICY=RUN ...",
    instance_from_str=run_or_runs,
    is_instance=lambda value: isinstance(value, str | dict | None),
    str_from_instance=lambda value: (
        [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else [str(value)]
    ),
)

"""Config dataclasses to and from plain values, with refusals that name the nearest right key."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

C = TypeVar("C")


class ConfigError(ValueError):
    """A command line or config that cannot run: the value, the reason and the remedy."""


class Checked:
    """Base of the config dataclasses that check their own fields as soon as they are made.

    Each part calls ``super().__post_init__()`` first, so that a config which inherits several parts
    has all of them checked; this one ends the chain.
    """

    def __post_init__(self) -> None:
        """Nothing to check here."""


def check_range(
    config: Any, names: str, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> None:
    """Raise ConfigError unless each of the named fields is finite and in [low, high], or in
    (low, high] with ``above``; None passes. ``names`` are separated by spaces."""
    for name in names.split():
        value = getattr(config, name)
        if value is None:
            continue
        enough = value > low if above else value >= low
        if not (math.isfinite(value) and enough and value <= high):
            raise ConfigError(f"{name} is {value}, but must be {_range_text(low, high, above)}")


def _range_text(low: float, high: float, above: bool) -> str:
    """The range in words."""
    if low == -math.inf:
        return "a finite number" if high == math.inf else f"at most {high:g}"
    words = f"more than {low:g}" if above else f"at least {low:g}"
    return words if high == math.inf else f"{words} and at most {high:g}"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like ``name``, best first, whatever their case."""
    by_lower = {k.lower(): k for k in known}
    return [by_lower[m] for m in difflib.get_close_matches(name.lower(), by_lower, count, 0.5)]


def to_plain(config: Any) -> dict[str, Any]:
    """A config dataclass as nested dicts and lists of YAML's plain values."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value


def from_plain(cls: type[C], values: Mapping[str, Any], source: str = "config") -> C:
    """A config of type ``cls`` from nested plain values; missing fields keep their defaults.

    Keys may use - for _. Raises ConfigError, naming ``source``, for an unknown key or a value of
    the wrong type.
    """
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kwargs: dict[str, Any] = {}
    for raw_key, value in values.items():
        key = str(raw_key).replace("-", "_")
        if key not in names:
            near = nearest(key, names)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"{source}: unknown key {raw_key!r}{hint}")
        kwargs[key] = _typed(hints[key], value, f"{source}: {raw_key}")
    return cls(**kwargs)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the annotated type, or ConfigError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return from_plain(hint, value, where)
    elif origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return _typed(option, value, where)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in args:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        each = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(each) == len(value):
            return tuple(_typed(h, v, where) for h, v in zip(each, value, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {str(k): _typed(args[1], v, where) for k, v in value.items()}
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint is float and isinstance(value, str):  # YAML reads 1e-4 as a string
        try:
            return float(value)
        except ValueError:
            pass
    elif isinstance(hint, type) and type(value) is hint:
        return value
    shown = getattr(hint, "__name__", str(hint)) if not args else str(hint)
    raise ConfigError(f"{where} is {value!r}, but must be {shown.replace('typing.', '')}")


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines ``key: old -> new`` for every leaf that differs between two plain configs."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += [f"{key}.{line}" for line in difference(a, b)]
        elif a != b:
            lines.append(f"{key}: {a!r} -> {b!r}")
    return lines

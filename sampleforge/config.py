"""The base of config dataclasses: checks, and conversion from and to plain values, with errors that
name the nearest key."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import json
import math
import numbers
import os
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from sampleforge.names import hint

C = TypeVar("C")
V = TypeVar("V")


class UserError(Exception):
    """An error whose message says all that a user can do: a command prints no traceback."""

    exit_code = 1
    """The exit code of a command that this error ends, if it was not set for the error itself."""


class ConfigError(UserError, ValueError):
    """A command line or config cannot run; the message has the value, the reason and the remedy."""

    exit_code = 2


class Checked:
    """Base of the config dataclasses, which check their own fields when they are made.

    Each part calls ``super().__post_init__()`` first, so that all parts of a config that inherits
    several are checked. This class ends the chain, and so comes first: the parts check values that
    have the declared types already.
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Raises ConfigError for a field that there is not, with the name that may be meant."""
        known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in fields:
            if name not in known:
                instead = hint(name, known) or f"; help({cls.__name__}) lists its settings"
                raise ConfigError(f"{cls.__name__}: unknown setting {name}{instead}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Convert each field to its declared type. Raises ConfigError, which names the field, for a
        value that does not fit."""
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            value = _typed(hints[field.name], given, f"{type(self).__name__}: {field.name}")
            if value is not given:
                object.__setattr__(self, field.name, value)


class SettingsDoc:
    """The ``__doc__`` of a config class, which ``help`` shows: its own docstring, and every field
    with its type, default and docstring. It is made of the sources when it is read."""

    def __init__(self, own: str | None) -> None:
        self._own = own

    def __get__(self, instance: object, cls: type[Any]) -> str:
        parts, described = [self._own] if self._own else [], dict[str, str]()
        for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
            described |= docstrings(base)
        for field in dataclasses.fields(cls):
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            words, shown = described.get(field.name, ""), repr(default)
            if dataclasses.is_dataclass(default):
                words = words or f"Settings of its own: help({type(default).__name__})."
                shown = f"{type(default).__name__}()"
            words = textwrap.fill(words, 92, initial_indent="    ", subsequent_indent="    ")
            parts.append(f"{field.name}: {field.type} = {shown}\n{words}")
        return "\n\n".join(parts)

    @classmethod
    def of(cls, config: type[C]) -> type[C]:
        """Give a config class this ``__doc__``; return the class."""
        if not isinstance(vars(config)["__doc__"], cls):
            own = config.__doc__
            signature = (own or "").startswith(f"{config.__name__}(")  # dataclass makes one
            config.__doc__ = cls(None if signature else own)  # type: ignore[assignment]
        return config


@functools.cache
def docstrings(cls: Any) -> dict[str, str]:
    """Return the docstrings under the fields of a class, each as one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def check_range(
    config: Any, names: str, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> None:
    """Raise ConfigError, naming the flag as it is typed, unless each of the named fields is finite
    and in [low, high], or in (low, high] with ``above``; None passes. ``names`` are separated by
    spaces."""
    for name in names.split():
        value = getattr(config, name)
        if value is None:
            continue
        inside = (value > low if above else value >= low) and value <= high
        if not (math.isfinite(value) and inside):
            flag = typed(f"{getattr(config, 'flag_prefix', '')}{name}", value)
            raise ConfigError(
                f"{flag}: must be {'finite' if inside else _range_text(low, high, above)}"
            )


LARGEST_SEED = 2**32 - 1
"""Of everything that takes a seed. Optuna's samplers take none above it; torch, whose generators
take 64 bits, has room for the seeds that are derived by adding to it."""


def check_seed(config: Any) -> None:
    """Raise ConfigError unless the field ``seed`` is None or in [0, `LARGEST_SEED`]."""
    check_range(config, "seed", low=0, high=LARGEST_SEED)


def _range_text(low: float, high: float, above: bool) -> str:
    """Return the range in words."""
    least, most = (f"{end:g}" if isinstance(end, float) else str(end) for end in (low, high))
    if low == -math.inf:
        return "a finite number" if high == math.inf else f"at most {most}"
    words = f"above {least}" if above else f"at least {least}"
    return words if high == math.inf else f"{words} and at most {most}"


def typed(name: str, value: Any) -> str:
    """Return a field, by its dotted name, and its value as they are typed on the command line:
    ``--learning-rate 0.1``, ``--no-async-rl``, ``--model.hidden-sizes 64 64``."""
    path, flag = name.rpartition(".")[0], name.rpartition(".")[2].replace("_", "-")
    prefix = f"--{path}." if path else "--"
    if isinstance(value, bool):
        return f"{prefix}{flag}" if value else f"{prefix}no-{flag}"
    if isinstance(value, Mapping):
        words = [f"{key}={in_yaml(each)}" for key, each in value.items()]
    else:
        words = [str(word) for word in (value if isinstance(value, tuple | list) else [value])]
    quoted = [shlex.quote(word if word.isprintable() else repr(word)) for word in words]
    return " ".join([f"{prefix}{flag}", *quoted])


def to_plain(config: Any) -> dict[str, Any]:
    """Return a config dataclass as nested dicts and lists of plain YAML values."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, str) else value


def from_plain(cls: type[C], values: Mapping[str, Any], source: str = "config") -> C:
    """Return a config of type ``cls`` made from nested plain values; missing fields keep their
    defaults.

    Keys may have - in the place of _. Raises ConfigError, which names ``source``, for an unknown
    key, one that is given in both spellings, or a value of the wrong type.
    """
    hints = _hints(cls)  # type: ignore[arg-type]
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kwargs: dict[str, Any] = {}
    for key, (raw_key, value) in zip(with_underscores(values, source), values.items(), strict=True):
        if key not in names:
            raise ConfigError(f"{source}: unknown key {raw_key!r}{hint(key, names)}")
        kwargs[key] = _typed(hints[key], value, f"{source}: {raw_key}")
    return cls(**kwargs)


def with_underscores(values: Mapping[Any, V], source: str) -> dict[str, V]:
    """Return the values by their keys, which may have - in the place of _. Raises ConfigError,
    which names ``source``, for one that is given in both spellings."""
    found: dict[str, V] = {}
    for raw_key, value in values.items():
        key = str(raw_key).replace("-", "_")
        if key in found:
            both = f"as {key.replace('_', '-')} and as {key}"
            raise ConfigError(f"{source}: {key} is given twice ({both}); leave out one")
        found[key] = value
    return found


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of a class's fields. To evaluate the annotations of a config takes 1 ms."""
    return typing.get_type_hints(cls)


NAMING_CODE = {
    "anneal",
    "callbacks",
    "encoder",
    "env",
    "evaluate_env",
    "evaluate_function",
    "head",
    "policy_mapping",
}
"""Settings that may name code of the user's own."""


def _name_of_code(code: Any) -> str | None:
    """Return module:name of a class or function at the top of a module, or of the script itself,
    by which others find it. None: it is none."""
    module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", "")
    if not name.isidentifier() or getattr(sys.modules.get(module or ""), name, None) is not code:
        return None
    return f"{'__main__' if module == '__mp_main__' else module}:{name}"


def _instead_of_function(name: str) -> str:
    """Return what to do with an object that was given as a setting; empty if it is of no use."""
    if name == "callbacks":
        return "; a callback's object is given to sf.train or Trainer, its class to a config"
    if name in NAMING_CODE:
        return (
            ", or a class or function at the top of a module, of the script or of a notebook's "
            "cell, which others find by its name"
        )
    if name == "stop":
        return (
            ', such as "return_mean>=475"; a function of a report is given to '
            "Trainer.train_until(function), and a callback ends the run with session.stop()"
        )
    return ""


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` converted to the annotated type. Raises ConfigError, which names ``where``,
    if it does not fit."""
    origin, args, name = typing.get_origin(hint), typing.get_args(hint), where.rpartition(": ")[2]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return from_plain(hint, value, where)
    elif origin in (typing.Union, types.UnionType):
        if type(value) in args:  # str | int | float keeps 1.0
            return value
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
    elif hint is Any:
        return _json(value, where)
    elif hint is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    elif hint is float and isinstance(value, str):  # YAML reads 1e-4 as a string
        with contextlib.suppress(ValueError):
            return float(value)
    elif hint is int and (whole := whole_number(value)) is not None:
        return whole
    elif hint is str and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    elif hint is str and name in NAMING_CODE and (code := _name_of_code(value)):
        return code
    elif isinstance(hint, type) and type(value) is hint:
        return value
    instead = _instead_of_function(name) if callable(value) or name == "callbacks" else ""
    raise ConfigError(f"{where}: {value!r} must be {_kind(hint)}{instead}")


def _json(value: Any, where: str) -> Any:
    """Return a value that JSON and YAML can hold, with tuples as lists. Raises ConfigError for any
    other."""
    if isinstance(value, list | tuple):
        return [_json(each, where) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _json(each, where) for key, each in value.items()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise ConfigError(
        f"{where}: {value!r} must be a number, a text, true, false or empty, or a list or keys and "
        "values of these, because a run folder keeps it; an object is made in a factory of your "
        "own, package.module:factory"
    )


def in_yaml(value: Any) -> str:
    """Return a value as it is typed after KEY=: YAML on one line, of a text the text itself."""
    return value if isinstance(value, str) else json.dumps(value)


def whole_number(value: Any) -> int | None:
    """Return the integer that a number, or a text such as 1e6 or 1_000_000, is equal to; None if
    there is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        return None
    if isinstance(value, numbers.Integral):
        return int(value)
    with contextlib.suppress(ValueError, OverflowError):
        number = int(value) if isinstance(value, str) and value.isdecimal() else float(value)
        if number == int(number):
            return int(number)
    return None


_KINDS = {
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    type(None): "empty",
}


def _kind(hint: Any) -> str:
    """Return an annotated type in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(option) for option in args)
    if origin is tuple:
        each = [_kind(arg) for arg in args if arg is not Ellipsis]
        return "a list" if args[-1] is Ellipsis else f"a list of {len(each)} values"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "keys and values"
    return _KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: old -> new`` for every leaf that differs between two plain configs."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += [f"{key}.{line}" for line in difference(a, b)]
        elif a != b:
            lines.append(f"{key}: {a!r} -> {b!r}")
    return lines

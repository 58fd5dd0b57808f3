"""Command-line flags from dataclasses, through tyro.

A config is flat, but its help shows the parts that it is made of: each part becomes a group of
flags without a prefix, and a nested dataclass (``model``) a group with one. tyro only parses; the
config itself is made from what it finds, so that the checks see flags and files together.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import tyro

from sampleforge.cli.key_values import KEY_VALUES
from sampleforge.config import ConfigError, to_plain, whole_number

C = TypeVar("C")
Field = tuple[str, Any, Any]
"""Name, annotation and `dataclasses.field`, as make_dataclass takes them."""
_MARKERS = (tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff)


def parse(cls: type[C], args: Sequence[str], prog: str, description: str) -> C:
    """The flags ``cls``, a dataclass, from a command line.

    Exits (SystemExit) with 0 after --help, with 2 and the nearest flag after one that is not known.
    """
    return tyro.cli(cls, args=list(args), prog=prog, description=description, config=_MARKERS)


OTHER_NAMES = {
    "lr": "learning-rate",
    "num-envs": "num-envs-per-worker",
    "n-envs": "num-envs-per-worker",
    "n-steps": "rollout",
    "num-steps": "rollout",
    "n-epochs": "num-epochs",
    "total-timesteps": "train-for-env-steps",
    "timesteps": "train-for-env-steps",
    "ent-coef": "exploration-coeff",
    "vf-coef": "value-coeff",
    "clip-range": "clip-ratio",
    "clip-coef": "clip-ratio",
    "discount": "gamma",
    "buffer-size": "replay-capacity",
    "workers": "num-workers",
    "env-id": "env",
}
"""Names of flags in other libraries -> ours."""


def check_known(cls: type[Any], args: Sequence[str]) -> None:
    """Raise ConfigError for a flag that other libraries have under another name than ``cls``. Other
    unknown flags are refused by `parse`."""
    names = {field.name.replace("_", "-") for field in dataclasses.fields(cls)}
    for arg in args:
        name = arg.partition("=")[0].removeprefix("--").replace("_", "-")
        ours = OTHER_NAMES.get(name)
        if arg.startswith("--") and name not in names and ours in names:
            raise ConfigError(f"Unknown flag --{name}. Did you mean --{ours}?")


def with_values(cls: type[Any], args: Sequence[str]) -> list[str]:
    """Return ``args`` as the parser of ``cls`` takes them: with a value after each flag of a field
    that is yes, no or left open (``bool | None``), so that these are typed as all other switches:
    --async-rl, --no-async-rl; and with whole numbers in digits, which may be typed as 1e6."""
    switches, numbers = _open_switches(cls), _whole_numbers(cls)
    found: list[str] = []
    is_number = False
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        flag, value = switches.get(arg.replace("_", "-"), (arg, None))
        has_value = value == "True" and following in ("True", "False", "None")
        name, equals, given = arg.partition("=")
        if is_number:
            arg = _digits(arg)
        elif equals and name.replace("_", "-") in numbers:
            arg = f"{name}={_digits(given)}"
        is_number = arg.replace("_", "-") in numbers
        found += [arg] if value is None or has_value else [flag, value]
    return found


def _digits(text: str) -> str:
    """A whole number in digits; any other text as it is."""
    number = whole_number(text)
    return text if number is None else str(number)


def _whole_numbers(cls: type[Any], prefix: str = "") -> set[str]:
    """The flags of ``cls`` whose value is a whole number."""
    found: set[str] = set()
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            found |= _whole_numbers(typing.cast("type[Any]", hint), f"{prefix}{name}.")
        elif hint is int or set(typing.get_args(hint)) == {int, type(None)}:
            found.add(f"--{prefix}{name.replace('_', '-')}")
    return found


def _open_switches(cls: type[Any], prefix: str = "") -> dict[str, tuple[str, str]]:
    """What each switch of a ``bool | None`` field of ``cls`` stands for: flag and value."""
    found: dict[str, tuple[str, str]] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            found |= _open_switches(typing.cast("type[Any]", hint), f"{prefix}{name}.")
        elif _is_open_switch(hint):
            flag = f"--{prefix}{name.replace('_', '-')}"
            off = f"--{prefix}no-{name.replace('_', '-')}"  # as tyro spells it for other switches
            found |= {flag: (flag, "True"), off: (flag, "False")}
    return found


def _is_open_switch(hint: Any) -> bool:
    return set(typing.get_args(hint)) == {bool, type(None)}


def unchecked(cls: type[Any]) -> type[Any]:
    """A dataclass with the fields of ``cls`` and none of its checks, for values that are not the
    whole config yet."""
    hints = typing.get_type_hints(cls)
    fields: list[Field] = []
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], _default(field)
        if dataclasses.is_dataclass(hint):
            hint = unchecked(typing.cast("type[Any]", hint))
            default = hint()
        fields.append((field.name, hint, _field(default)))
    return dataclasses.make_dataclass(cls.__name__, fields, frozen=True)


def config_flags(cls: type[Any], defaults: Any, first: Sequence[Field]) -> type[Any]:
    """The flags of a config class: ``first``, then a group per part. ``defaults`` has the fields of
    ``cls``."""
    groups, parts = list(first), _parts(cls)
    covered = {name for part in parts for name in inspect.get_annotations(part)} | {*_nested(cls)}
    lost = {field.name for field in dataclasses.fields(cls)} - covered
    assert not lost, f"{cls.__name__} has fields in no part, which no flag would set: {lost}"
    for part in parts:
        group = _group(part, defaults)
        without_prefix = Annotated[(group, tyro.conf.OmitArgPrefixes)]  # type: ignore[valid-type]
        groups.append((_title(part), without_prefix, _field(group())))
    for name, kind in _nested(cls).items():
        group = _group(kind, getattr(defaults, name), f"{name}.")
        groups.append((name, group, _field(group())))
    return dataclasses.make_dataclass("Flags", groups, frozen=True)


def config_values(cls: type[Any], flags: Any) -> dict[str, Any]:
    """The fields of ``cls``, nested, from parsed flags of `config_flags`."""
    values: dict[str, Any] = {}
    for part in _parts(cls):
        values |= to_plain(getattr(flags, _title(part)))
    return values | {name: to_plain(getattr(flags, name)) for name in _nested(cls)}


def _parts(cls: type[Any]) -> list[type[Any]]:
    """The dataclasses that ``cls`` inherits its fields from, in the order of its fields."""
    bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    return bases[::-1]


def _nested(cls: type[Any]) -> dict[str, type[Any]]:
    """The fields of ``cls`` that are dataclasses themselves."""
    found: dict[str, type[Any]] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found[name] = hint
    return found


def _title(part: type[Any]) -> str:
    """Name of the group: the last word of the class's, as in AppoLossConfig."""
    words: list[str] = re.findall("[A-Z][a-z]+", part.__name__.removesuffix("Config"))
    return words[-1].lower()


def _group(part: type[Any], defaults: Any, prefix: str = "") -> type[Any]:
    """The flags of one part: its own fields, their docstrings as help. ``prefix``: of the flags."""
    hints, docs = typing.get_type_hints(part), _docs(part)
    fields: list[Field] = []
    for name in inspect.get_annotations(part):
        if typing.get_origin(hints[name]) is typing.ClassVar:
            continue
        default = getattr(defaults, name)
        shown = _shown(docs.get(name, ""), default)
        marks: list[Any] = [tyro.conf.arg(metavar=_metavar(hints[name]), **shown)]
        if _is_open_switch(hints[name]):
            # Both flags take the value that `with_values` gives to them; help shows an alias first.
            on, off = (f"--{prefix}{name.replace('_', '-')}",), f"no-{name}"
            marks = [tyro.conf.arg(name=off, aliases=on, metavar="", **shown)]
        if typing.get_origin(hints[name]) is dict:
            marks.append(KEY_VALUES)
        hint = Annotated[(hints[name], *marks)]  # type: ignore[valid-type]
        fields.append((name, hint, _field(getattr(defaults, name))))
    return dataclasses.make_dataclass(part.__name__, fields, frozen=True)


def _shown(text: str, default: Any) -> dict[str, Any]:
    """The help of a flag: its text and, unless the text says it or there is none, its default."""
    if default in (None, "", {}) or ("(default:" in text and default is None):
        return {"help": text, "help_behavior_hint": ""}
    if isinstance(default, bool):
        return {"help": text, "help_behavior_hint": f"(default: {'on' if default else 'off'})"}
    return {"help": re.sub(r" \(default: [^)]*\)", "", text)}


def _metavar(hint: Any) -> str | None:
    """What stands for the value of a flag that may be left open, None for the parser's own."""
    options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if type(None) not in typing.get_args(hint) or len(options) != 1:
        return None
    if typing.get_origin(options[0]) is typing.Literal:
        return "{" + ",".join(map(str, typing.get_args(options[0]))) + "}"
    return {int: "INT", float: "FLOAT", str: "STR"}.get(options[0])


def _docs(cls: type[Any]) -> dict[str, str]:
    """The docstrings under the fields of a class, each as one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _field(default: Any) -> Any:
    """A dataclass field with that default, which may be mutable."""
    return dataclasses.field(default_factory=lambda: default)

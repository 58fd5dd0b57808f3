"""Command-line flags from dataclasses, parsed by tyro.

A config is flat, but its help shows the parts that it consists of: each part becomes a group of
flags without a prefix, and a nested dataclass (``model``) becomes a group with a prefix. tyro
parses into classes without checks; the config is made from the result together with preset and
file, so that its checks see all values."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
import typing
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from sampleforge.cli.words import KEY_JSON, KEY_VALUES, RUNS
from sampleforge.config import ConfigError, docstrings, to_plain, whole_number
from sampleforge.names import ELSEWHERE, OTHER_FLAGS, nearest, same_setting

C = TypeVar("C")
Field = tuple[str, Any, Any]
"""Name, annotation and `dataclasses.field`, as make_dataclass takes them."""
_MARKERS = (tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff)


def parse(cls: type[C], args: Sequence[str], prog: str, description: str) -> C:
    """Return the flags ``cls``, a dataclass, parsed from a command line.

    Raises SystemExit with 0 after --help, and ConfigError for flags and values that it has not.
    """
    hints, texts = typing.get_type_hints(cls, include_extras=True), dict[str, str]()
    for base in filter(dataclasses.is_dataclass, cls.__mro__):  # the command's own flags first
        texts |= {name: text for name, text in docstrings(base).items() if name not in texts}
    defaults = {f.name: _default(f) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    names = sorted(defaults, key=[*texts].index)
    shown = [_flag(name, hints[name], texts[name], defaults[name]) for name in names]
    kind = dataclasses.make_dataclass(cls.__name__, shown, frozen=True, kw_only=True)
    values: Any = parse_shown(kind, with_values(cls, args), prog, description)
    return cls(**{name: getattr(values, name) for name in names})


def parse_shown(cls: type[C], args: Sequence[str], prog: str, description: str) -> C:
    """Return a class of `config_flags` parsed from a command line; the errors are those of
    `parse`."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed, unknown = tyro.cli(
                cls,
                args=list(args),
                prog=prog,
                description=description,
                config=_MARKERS,
                return_unknown_args=True,
            )
    except SystemExit as end:
        if end.code:
            raise ConfigError(_told(printed.getvalue())) from None
        raise
    if unknown:
        names = flag_names(cls)
        if "--" in args and (given := _given_after_dashes(args, names)):
            raise ConfigError(
                f"{given} follows `--`, after which nothing is a flag; put it before `--`"
            )
        raise ConfigError(_unknown(unknown, names, prog))
    return parsed


_KINDS = {
    "INT": "a whole number",
    "[INT": "whole numbers, separated by spaces: 64 64",
    "FLOAT": "a number",
    "FLOAT FLOAT": "numbers, separated by spaces: 0.5 2",
    "[FLOAT": "numbers, separated by spaces: 0.5 2",
    "FLOAT|{None,sign}": "a number or sign",
}
"""Beginning of the placeholder of a flag's values -> what they must be."""


def _told(box: str) -> str:
    """Return what tyro says of a value in a box, in the words of our own errors."""
    text = " ".join(line.strip("│ ") for line in box.splitlines()[1:] if line.strip("│ "))
    said = next(part.strip() for part in re.split("[─-]{5,}", text) if part.strip())
    if found := re.match(r"Missing value for argument '(.*?)'\. Expected (\d+) ", said):
        some = f"{found[2]} values, separated by spaces"
        return f"{found[1]}: needs {'a value' if found[2] == '1' else some}"
    if found := re.match(r"invalid choice '(.*?)' for argument '(.*?)'.* one of \((.*)\)", said):
        choices = [word.strip("' ") for word in found[3].split(",")]
        wanted = ", ".join(word for word in choices if word not in ("", "None"))
        return f"{found[2]} {found[1]}: must be one of {wanted}"
    if found := re.match(r"Missing from (.*?): (.*) \(required\)", said):
        return f"`{found[1]}` needs {re.split(r' [A-Z][a-z]', found[2])[0]} (--help says more)"
    placeholder = re.search(r"Argument helptext:\s+--\S+ (FLOAT FLOAT|\S+)", text)
    found = re.match(
        r"Error parsing (--[^:/]+).*?: (?:no type matching .*? instantiated from \['"
        r"|Could not (?:find valid parse for|parse) arguments:? \['"
        r"|(?:invalid literal|could not convert).*')(.*?)'(?:\]|$)",
        said,
    )
    if placeholder and found:
        choices = placeholder[1].strip("{}[").split(",")
        wanted = _KINDS.get(placeholder[1]) or f"one of {', '.join(choices)}"
        given = found[2].replace("', '", " ")
        return f"{found[1]} {given}: must be {wanted}"
    return said.removeprefix("Error parsing ")


def _given_after_dashes(args: Sequence[str], names: Collection[str]) -> str | None:
    """Return the first word after ``--`` that would be one of the flags ``names`` before it."""
    after = args[args.index("--") + 1 :]
    flags = ((word, word.partition("=")[0].replace("_", "-")) for word in after)
    return next((word for word, flag in flags if flag[:2] == "--" and flag[2:] in names), None)


def _unknown(words: Sequence[str], names: Collection[str], prog: str) -> str:
    """Return the error for words of a command line that no flag takes."""
    flag = next((word for word in words if word.startswith("--")), None)
    if flag is None and words[0].lower() in ("true", "false"):
        return f"{words[0]} belongs to no flag: a switch has no value, it is --NAME or --no-NAME"
    if flag is None:
        return f"{words[0]} belongs to no flag; `{prog} --help` lists them"
    name = flag.partition("=")[0].removeprefix("--").replace("_", "-")
    off = re.sub(r"^no-(.+\.)", r"\1no-", name)  # --no-model.X is --model.no-X
    ours = [own for own in (same_flag(name, names), off) if own in names]
    near = ours or nearest(name, names, 1)
    lists = f"`{prog} --help{'-all' if 'help-all' in names else ''}` lists the flags."
    hint = f"Did you mean --{near[0]}?" if near else lists
    return f"Unknown flag --{name}. {hint}"


def flag_names(cls: type[Any], prefix: str = "") -> set[str]:
    """Return the names of the flags of a class of `config_flags`, without dashes in front."""
    names = {"help"} - {prefix}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        kind, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        flag = f"{prefix}{name.replace('_', '-')}"
        if dataclasses.is_dataclass(kind):
            below = "" if tyro.conf.OmitArgPrefixes in marks else f"{flag}."
            names |= flag_names(typing.cast("type[Any]", kind), below)
        else:
            off = f"{prefix}no-{name.replace('_', '-')}"
            names |= {flag, off} if bool in (kind, *typing.get_args(kind)) else {flag}
    return names


def same_flag(name: str, names: Collection[str]) -> str | None:
    """Return the flag, of ``names``, that is ``name`` in other libraries or in earlier versions;
    None if there is none. All are without dashes in front."""
    ours = OTHER_FLAGS.get(name, "")
    if ours.partition(" ")[0] in names:
        return ours
    found = same_setting(name.replace("-", "_"), {each.replace("-", "_") for each in names})
    return found and found.replace("_", "-")


NOT_WITH = {
    "ddppo": dict.fromkeys(
        ("num-policies", "pbt"),
        "ddppo trains one policy, whose ranks step in time with each other; for a population of "
        "ddppo runs use `sampleforge pbt --population N ddppo`",
    )
}
"""Algorithm -> flags of other algorithms, and why it does not have them."""


def check_known(
    cls: type[Any], args: Sequence[str], algos: Mapping[str, type[Any]], algo: str
) -> None:
    """Raise ConfigError for a flag whose name is that of another library, with the name it has in
    ``cls``, and for a flag of another one of ``algos``. Other unknown flags are refused by
    `parse`."""
    names = {*_flag_names(cls), "help"}
    for arg in args:
        name = arg.partition("=")[0].removeprefix("--").replace("_", "-")
        if not arg.startswith("--") or name in names:
            continue
        if ours := same_flag(name, names):
            raise ConfigError(f"Unknown flag --{name}. Did you mean --{ours}?")
        if instead := ELSEWHERE.get(name.replace("-", "_")):
            raise ConfigError(f"Unknown flag --{name}: {instead}")
        flags = {other: _flag_names(its) for other, its in algos.items()}
        called = (name if name in its else same_flag(name, its) for its in flags.values())
        ours = next(filter(None, called), name)
        having = [other for other, its in flags.items() if ours in its]
        if having:
            why = NOT_WITH.get(algo, {}).get(ours, f"{algo} has none of that name")
            *others, last = having
            of = f"{', '.join(others)} and {last}" if others else last
            asked = "" if ours == name else f"Unknown flag --{name}. "
            raise ConfigError(
                f"{asked}--{ours} is a flag of {of}; {why} "
                f"(sampleforge train {algo} --help-all lists its flags)"
            )


def _flag_names(cls: type[Any]) -> set[str]:
    """Return the names of the flags of a config class, without those of nested classes."""
    return {field.name.replace("_", "-") for field in dataclasses.fields(cls)}


def with_values(cls: type[Any], args: Sequence[str]) -> list[str]:
    """Return ``args`` in the form that the parser of ``cls`` takes.

    The flags of a ``bool | None`` field get a value, so that they are typed like all other switches
    (--async-rl, --no-async-rl). Whole numbers, which may be typed as 1e6, are written in digits,
    and the value none of a number that may be left out as None. A list of texts, or of pairs, that
    is given in parts (--stop A --stop B) is put together."""
    args = _with_whole_lists(cls, args)
    switches, numbers = _optional_switches(cls), _numbers(cls)
    words: list[str] = []
    before = ""
    for arg, following in zip(args, [*args[1:], ""], strict=False):
        flag, value = switches.get(arg.replace("_", "-"), (arg, None))
        has_value = value == "True" and following in ("True", "False", "None")
        name, equals, given = arg.partition("=")
        name = name.replace("_", "-")
        if before in numbers:
            arg = _number(arg, numbers[before])
        elif equals and name in numbers:
            arg = f"{name}={_number(given, numbers[name])}"
        before = arg.replace("_", "-")
        words += [arg] if value is None or has_value else [flag, value]
    return words


def _with_whole_lists(cls: type[Any], args: Sequence[str]) -> list[str]:
    """Return ``args`` with all values of a list of texts after its first flag."""
    values: dict[str, list[str]] = {}
    words: list[str | list[str]] = []
    current: list[str] | None = None
    lists = _lists_of_texts(cls)
    for arg in args:
        name, equals, value = arg.partition("=")
        flag = name.replace("_", "-")
        if flag in lists:
            if flag not in values:
                values[flag] = []
                words += [flag, values[flag]]
            current = values[flag]
            current += [value] if equals else []
        elif current is not None and not arg.startswith("--"):
            current.append(arg)
        else:
            current = None
            words.append(arg)
    return [each for word in words for each in (word if isinstance(word, list) else [word])]


def _lists_of_texts(cls: type[Any]) -> set[str]:
    """Return the flags of ``cls`` that take any number of texts, or of pairs."""
    return {
        f"--{name.replace('_', '-')}"
        for name, hint in typing.get_type_hints(cls).items()
        if hint == tuple[str, ...] or _takes_pairs(hint)
    }


def _number(text: str, optional: bool) -> str:
    """Return a whole number written in digits, none and null as None if the flag is ``optional``,
    and any other text unchanged."""
    if optional and text.lower() in ("none", "null"):
        return "None"
    number = whole_number(text)
    return text if number is None else str(number)


def _numbers(cls: type[Any], prefix: str = "") -> dict[str, bool]:
    """Return the flags of ``cls`` that take a number, each with whether it may be None."""
    flags: dict[str, bool] = {}
    for name, hint in typing.get_type_hints(cls).items():
        kinds = {hint, *typing.get_args(hint)}
        if dataclasses.is_dataclass(hint):
            flags |= _numbers(typing.cast("type[Any]", hint), f"{prefix}{name}.")
        elif kinds & {int, float}:
            flags[f"--{prefix}{name.replace('_', '-')}"] = type(None) in kinds
    return flags


def _optional_switches(cls: type[Any], prefix: str = "") -> dict[str, tuple[str, str]]:
    """Return the switches of the ``bool | None`` fields of ``cls``, each with the flag and the
    value that it stands for."""
    switches: dict[str, tuple[str, str]] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            switches |= _optional_switches(typing.cast("type[Any]", hint), f"{prefix}{name}.")
        elif _is_optional_switch(hint):
            flag = f"--{prefix}{name.replace('_', '-')}"
            off = f"--{prefix}no-{name.replace('_', '-')}"  # as tyro spells it for other switches
            switches |= {flag: (flag, "True"), off: (flag, "False")}
    return switches


def _is_optional_switch(hint: Any) -> bool:
    return set(typing.get_args(hint)) == {bool, type(None)}


def unchecked(cls: type[Any]) -> type[Any]:
    """Return a dataclass with the fields of ``cls`` and without its checks, for values that are not
    the complete config yet."""
    hints = typing.get_type_hints(cls)
    fields: list[Field] = []
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], _default(field)
        if dataclasses.is_dataclass(hint):
            hint = unchecked(typing.cast("type[Any]", hint))
            default = hint()
        fields.append((field.name, hint, _field(default)))
    return dataclasses.make_dataclass(cls.__name__, fields, frozen=True)


TITLES = {
    "env": "environment",
    "init": "fine-tuning",
    "record": "recording",
    "evaluator": "evaluation",
    "workers": "worker process",
    "sampler": "sampling",
    "policies": "self-play and several-policies",
    "rules": "population rule",
    "pbt": "population",
    "process": "learner process",
    "learners": "several-learners",
    "learner": "learning",
    "input": "recorded-data",
    "heads": "Q-network",
    "dqn": "Q-learning",
    "stored": "batch",
}
"""What the help calls the flags of a part, before the word options: its name, if not named here."""


def given_names(args: Sequence[str]) -> set[str]:
    """Return the names, with dots, of the fields whose flags are on a command line."""
    names = set[str]()
    for arg in args:
        if arg.startswith("--"):
            name = arg[2:].partition("=")[0].replace("-", "_")
            path, dot, last = name.rpartition(".")
            names |= {name, f"{path}{dot}{last.removeprefix('no_')}"}
    return names


def config_flags(
    cls: type[Any], defaults: Any, first: Sequence[Field], names: Container[str] | None = None
) -> type[Any]:
    """Return the flags of a config class: ``first``, then a group per part. ``defaults`` has the
    fields of ``cls``. ``names``: only the flags of these fields, which takes a fifth of the time
    where they are few."""
    groups, parts = list(first), config_parts(cls)
    covered = {name for part in parts for name in inspect.get_annotations(part)} | {*_nested(cls)}
    missing = {field.name for field in dataclasses.fields(cls)} - covered
    assert not missing, f"{cls.__name__} has fields in no part, which no flag would set: {missing}"
    for part in parts:
        if flags := _own_flags(part, defaults, names=names).values():
            group = dataclasses.make_dataclass(part.__name__, flags, frozen=True)
            title = part_title(part)
            groups.append(_titled(title, TITLES.get(title, title), group))
    for name, kind in _nested(cls).items():
        if flags := _own_flags(kind, getattr(defaults, name), f"{name}.", names).values():
            group = dataclasses.make_dataclass(kind.__name__, flags, frozen=True)
            groups.append((name, group, _field(group())))
    return dataclasses.make_dataclass("Flags", groups, frozen=True)


def chosen_flags(
    cls: type[Any], defaults: Any, first: Sequence[Field], chosen: Mapping[str, str]
) -> type[Any]:
    """Return some flags of a config class, to be shown as help: those of ``chosen``, which are the
    names of fields by the title of their group. The title is empty for the group that ``first``
    comes at the end of, and the name of the field for those of a nested class. Names that ``cls``
    has not are left out."""
    flags = {k: v for part in config_parts(cls) for k, v in _own_flags(part, defaults).items()}
    nested, groups = _nested(cls), list[Field]()
    for number, (title, names) in enumerate(chosen.items()):
        is_nested = title in nested
        of = (
            _own_flags(nested[title], getattr(defaults, title), f"{title}.") if is_nested else flags
        )
        fields = [of[name] for name in names.split() if name in of]
        group = dataclasses.make_dataclass(f"Group{number}", fields, frozen=True)
        if is_nested:
            groups.append((title, group, _field(group())))
        elif fields:
            groups += [_titled(f"group_{number}", title, group)] if title else [*fields, *first]
    return dataclasses.make_dataclass("Flags", groups, frozen=True)


def _titled(name: str, title: str, group: type[Any]) -> Field:
    """Return the field of a group of flags without a prefix."""
    marks = tyro.conf.OmitArgPrefixes, tyro.conf.arg(name=title)
    return name, Annotated[(group, *marks)], _field(group())


def config_values(cls: type[Any], defaults: Any, flags: Any) -> dict[str, Any]:
    """Return the fields of ``cls``, nested, from parsed flags of `config_flags`, or from its
    ``defaults``."""
    values, given = to_plain(defaults), to_plain(flags)
    for part in config_parts(cls):
        values |= given.get(part_title(part), {})
    return values | {name: values[name] | given.get(name, {}) for name in _nested(cls)}


def config_parts(cls: type[Any]) -> list[type[Any]]:
    """Return the dataclasses that ``cls`` inherits its fields from, in the order of its fields;
    those that only put others together, or set other defaults, have no part of their own."""
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    return [base for base in reversed(bases) if _introduced(base) - {*_nested(base)}]


def _introduced(cls: type[Any]) -> set[str]:
    """Return the names of the fields that ``cls`` has and its bases have not."""
    bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    return {field.name for field in dataclasses.fields(cls)} - inherited


def _nested(cls: type[Any]) -> dict[str, type[Any]]:
    """Return the fields of ``cls`` that are dataclasses, by name."""
    nested: dict[str, type[Any]] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            nested[name] = hint
    return nested


def part_title(part: type[Any]) -> str:
    """Return the name of a part's group: the last word of the class's name (PpoLossConfig:
    loss)."""
    words: list[str] = re.findall("[A-Z][a-z0-9]*", part.__name__.removesuffix("Config"))
    return words[-1].lower()


def _own_flags(
    part: type[Any], defaults: Any, prefix: str = "", names: Container[str] | None = None
) -> dict[str, Field]:
    """Return the flags of one part: its own fields, with their docstrings as help. ``prefix``: the
    beginning of the flags' names; ``names``: see `config_flags`."""
    own = inspect.get_annotations(part)
    if names is not None and not (own := {n: own[n] for n in own if f"{prefix}{n}" in names}):
        return {}
    hints, docs = typing.get_type_hints(part), docstrings(part)  # type: ignore[arg-type]
    return {
        name: _flag(name, hints[name], docs.get(name, ""), getattr(defaults, name), prefix)
        for name in own
        if typing.get_origin(hints[name]) is not typing.ClassVar
    }


def _flag(name: str, hint: Any, text: str, default: Any, prefix: str = "") -> Field:
    """Return the field of a flag. ``hint`` may have marks of tyro, which hold."""
    kind, *given = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    shown = _shown(text, default)
    marks: list[Any] = [tyro.conf.arg(metavar=_metavar(kind), **shown)]
    if _is_optional_switch(kind):
        # `with_values` gives both flags their value; the help shows an alias first.
        on, off = (f"--{prefix}{name.replace('_', '-')}",), f"no-{name}"
        marks = [tyro.conf.arg(name=off, aliases=on, metavar="", **shown)]
    if kind == str | dict[str, str] | None:
        marks.append(RUNS)
    elif _takes_pairs(kind) and not given:
        marks.append(KEY_JSON if typing.get_args(kind)[-1] is Any else KEY_VALUES)
    field = dataclasses.field() if default is dataclasses.MISSING else _field(default)
    return name, Annotated[(kind, *marks, *given)], field


def _takes_pairs(hint: Any) -> bool:
    """Return whether a flag takes KEY=VALUE pairs."""
    return any(typing.get_origin(option) is dict for option in (hint, *typing.get_args(hint)))


def _shown(text: str, default: Any) -> dict[str, Any]:
    """Return the help of a flag as arguments of `tyro.conf.arg`: its text, and its default unless
    the text has it or there is none."""
    if default is dataclasses.MISSING:
        return {"help": text}
    if default in (None, "", {}, ()) or ("(default:" in text and default is None):
        return {"help": text, "help_behavior_hint": ""}
    text = re.sub(r" \(default: [^)]*\)", "", text)
    if isinstance(default, bool):
        return {"help": text, "help_behavior_hint": f"(default: {'on' if default else 'off'})"}
    return {"help": text}


def _metavar(hint: Any) -> str | None:
    """Return the placeholder for the value of an optional flag; None for tyro's own placeholder.
    Words beside numbers have None among them, and come last: Python may give the types in any
    order."""
    options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if type(None) not in typing.get_args(hint):
        return None
    words = [arg for option in options for arg in typing.get_args(option)]
    if len(options) == 2 and float in options and words:
        return "FLOAT|{" + ",".join(map(str, [None, *words])) + "}"
    if len(options) != 1:
        return None
    if typing.get_origin(options[0]) is typing.Literal:
        return "{" + ",".join(map(str, words)) + "}"
    names = {int: "INT", float: "FLOAT", str: "STR"}
    if typing.get_origin(options[0]) is tuple:
        name = names[words[0]]
        return f"[{name} [{name} ...]]"
    return names.get(options[0])


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _field(default: Any) -> Any:
    """Return a dataclass field with this default, which may be mutable."""
    return dataclasses.field(default_factory=lambda: default)

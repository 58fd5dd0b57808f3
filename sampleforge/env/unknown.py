"""What is said of an environment id that is not known: the one that is meant, and how any other is
named."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from sampleforge.env.family import Family

NEAR = 0.75
"""Least similarity (`difflib.SequenceMatcher.ratio`) of two names that may be one. At 0.7
"DescentEnv" suggests "Centipede"."""
LEAST_PART = 4
"""Least length of a name that suggests the longer ones which contain it."""
WITH_BRACES = re.compile(r"""["']([\w/.-]+\{[\w/.{}:-]*-v\d+)["']""")
"""A text of code that is filled in, and becomes an id then."""
LARGEST = 1 << 20
"""Bytes of the largest module of a package that is searched for an id."""
OWN = ("sampleforge", "gymnasium")
"""Packages all of whose ids are known, beside those of the families."""
WAYS = (
    "`sampleforge envs` lists the known ones; an id that a module registers when it is imported is "
    "written module:Id, and an environment of your own package.module:factory"
)


def unknown(
    env_id: str, known: Sequence[str], families: Sequence[Family], needs: dict[str, str]
) -> str:
    """Return what is said of ``env_id``, which is not among the ``known`` ids.

    Another version of the same name comes first, then what a family knows the id as, then the
    installed package that registers it, then similar names. ``needs``: of each family that is not
    installed, by its name, what it needs."""
    begin = f"Unknown environment {env_id}."
    if (newest := newest_version(env_id, known)) is not None:
        return f"{begin} Did you mean {newest}?"
    for family in families:
        if (meant := family.meant(env_id)) is not None:
            lacking = needs.get(family.name)
            return f"{begin} Did you mean {meant}?" + (f" It {lacking}" if lacking else "")
    found = next(registering(env_id, families), None)
    if found is not None:
        package, name = found
        return f"{begin} The package {package} registers it when it is imported: --env {name}"
    near = similar(env_id, known)
    return f"{begin} Did you mean {near[0]}? If not: {WAYS}" if near else f"{begin} {WAYS}"


def newest_version(env_id: str, known: Iterable[str]) -> str | None:
    """Return the newest of the ids that differ from ``env_id`` in their version only, or None."""
    name = env_id.rpartition("-v")[0] or env_id
    versions = [i for i in known if i.rpartition("-v")[0].lower() == name.lower()]
    return max(versions, key=_version, default=None)


def similar(env_id: str, known: Iterable[str]) -> list[str]:
    """Return the ids whose names, without namespace and version, ``env_id`` may be a wrong spelling
    or a part of, best first."""
    asked = _name(env_id).lower()
    by_name: dict[str, str] = {}
    for each in known:
        best = by_name.setdefault(_name(each).lower(), each)
        if _version(each) > _version(best):
            by_name[_name(each).lower()] = each
    near = difflib.get_close_matches(asked, by_name, 3, NEAR)
    if len(asked) >= LEAST_PART:
        near += sorted((name for name in by_name if asked in name and name not in near), key=len)
    return [by_name[name] for name in near]


def registering(env_id: str, families: Sequence[Family] = ()) -> Iterator[tuple[str, str]]:
    """Find the installed packages for gymnasium, but for those of ``families``, in whose code the
    id stands as a text, with any version, or a text with braces that may become the id
    ("Foraging-{0}x{0}-v3"); return (package, module:Id) of each."""
    name = re.escape(env_id.rpartition("-v")[0] or env_id)
    written = re.compile(rf"""["']((?:[\w-]+/)?{name}-v\d+)["']""")
    known = {*OWN, *(family.requires for family in families)}
    for package in distributions():
        is_of_gym = any(re.match(r"gym(nasium)?\b", need) for need in package.requires or ())
        if package.name.replace("-", "_") in known or not is_of_gym:
            continue
        ids = {
            (module, one)
            for module, text in _code(package)
            for one in (*written.findall(text), *([env_id] if _may_make(text, env_id) else ()))
        }
        if ids:
            module, one = max(ids, key=lambda each: (each[1] == env_id, _version(each[1])))
            yield package.name, f"{module}:{one}"


def _may_make(text: str, env_id: str) -> bool:
    """Return whether a text with braces in this code may become the id. It must begin with some
    letters of it."""
    for found in WITH_BRACES.findall(text):
        parts = re.split(r"\{[^{}]*\}", found)
        pattern = ".*".join(map(re.escape, parts))
        if len(parts[0]) >= LEAST_PART and re.fullmatch(pattern, env_id):
            return True
    return False


def _code(package: Distribution) -> Iterator[tuple[str, str]]:
    """Return the top module and the text of each Python file of a package."""
    for file in package.files or ():
        path = Path(file.locate())
        if file.suffix == ".py" and path.is_file() and path.stat().st_size <= LARGEST:
            yield file.parts[0].removesuffix(".py"), path.read_text("utf-8", "replace")


def _name(env_id: str) -> str:
    """Return an id without its namespace and version."""
    name = re.split("[/:]", env_id)[-1]
    return name.rpartition("-v")[0] or name


def _version(env_id: str) -> int:
    version = env_id.rpartition("-v")[2]
    return int(version) if version.isdecimal() else 0

"""The command `sampleforge envs [PART ...]`: list the ids that --env accepts."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from sampleforge.cli.flags import parse
from sampleforge.config import ConfigError
from sampleforge.names import nearest

if TYPE_CHECKING:
    from sampleforge.env.family import Family


@dataclass(frozen=True)
class EnvFlags:
    parts: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PART ...]")
    ] = ()
    """List only ids that contain one of these, upper or lower case."""


def run(args: Sequence[str]) -> int:
    """Print the ids by family. Raises ConfigError if no id contains any of the parts."""
    text = "List the environments, by the family of their simulator."
    flags = parse(EnvFlags, args, "sampleforge envs", text)
    from sampleforge.env.registry import families, family_ids, known_ids, load_plugins

    groups, broken = dict[str, list[str]](), list[str]()
    for family in families():
        try:
            groups[_title(family)] = list(family_ids(family))
        except ConfigError as error:
            broken.append(f"sampleforge: warning: {error}")
    load_plugins()
    groups["gymnasium"] = _others(families())
    shown = {title: _matching(ids, flags.parts) for title, ids in groups.items()}
    if flags.parts and not any(shown.values()):
        near = nearest(flags.parts[0], known_ids())
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ConfigError(f"no environment has {' or '.join(flags.parts)} in its id{hint}")
    for title, ids in shown.items():
        if ids or not flags.parts:
            print(title)
            print(_columns(ids))
    for line in broken:
        print(line, file=sys.stderr)
    if not families():
        print("\nThe bundled families are known once SampleForge is installed: pip install -e .")
    print(
        "\nAny other: --env module:Id, an id that the module registers when it is imported, or"
        "\n--env package.module:factory, a function or class of your own"
    )
    return 0


def _title(family: Family) -> str:
    """Return a family's name, and the command that installs its simulator if it is missing."""
    if family.installed:
        return family.name
    return f'{family.name} (not installed: pip install "sampleforge[{family.extra}]")'


def _others(families: Sequence[Family]) -> list[str]:
    """Return the ids that are registered with gymnasium and belong to no family. About a thousand
    ids of ALE's old protocols are left out, although they work."""
    import gymnasium as gym

    return sorted(
        env_id
        for env_id, spec in gym.registry.items()
        if not str(spec.entry_point).startswith("ale_py")
        and not any(family.claims(env_id) for family in families)
    )


def _matching(ids: Sequence[str], parts: Sequence[str]) -> list[str]:
    return [i for i in ids if not parts or any(part.lower() in i.lower() for part in parts)]


def _columns(ids: Sequence[str]) -> str:
    """Return the ids as indented lines of up to 100 columns, without breaks at hyphens."""
    text = " ".join(ids) or "-"
    indent = "    "
    return textwrap.fill(
        text, 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )

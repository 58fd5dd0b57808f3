"""The command `sampleforge completion`: have a shell complete commands, flags and their values.

What can follow is read from the help of the command that is being typed, so that nothing lists
the flags a second time.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sampleforge.cli.flags import parse
from sampleforge.presets import preset_names
from sampleforge.topologies.config_classes import algorithm_names

SCRIPT = """\
[ -n "${ZSH_VERSION-}" ] && autoload -Uz compinit bashcompinit && compinit && bashcompinit
_sampleforge() {
    local IFS=$'\\n'
    COMPREPLY=($(sampleforge completion --words "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _sampleforge sampleforge"""
"""For bash and zsh. Where nothing is offered, the shell offers files."""


WORDS = "--words"
"""Asks for what can stand in the place of the last one of the words behind it."""


@dataclass(frozen=True)
class CompletionFlags:
    pass


def run(args: Sequence[str]) -> int:
    """Print the script, or what can be typed."""
    if args[:1] == [WORDS]:
        print("\n".join(_offered(args[1:])))
        return 0
    text = (
        "Print a script that completes commands, flags and values in bash and zsh. For every "
        "shell to come: echo 'eval \"$(sampleforge completion)\"' >> ~/.bashrc (or ~/.zshrc)"
    )
    parse(CompletionFlags, args, "sampleforge completion", text)
    print(SCRIPT)
    return 0


def _offered(typed: Sequence[str]) -> list[str]:
    """Return what can stand in the place of the last word."""
    from sampleforge.cli import VERBS

    *before, last = typed or [""]
    if not before:
        words = [*VERBS]
    elif before in (["train"], ["describe"]):
        words = algorithm_names()
    elif before[-1] == "--preset":
        algo = _algorithm(before)
        words = preset_names(algo) if algo else []
    else:
        words = _from_help(before, last.startswith("-"))
    return [word for word in words if word.startswith(last)]


def _algorithm(before: Sequence[str]) -> str | None:
    """Return the algorithm that the words of a command name, None if there is none yet."""
    names = algorithm_names()
    pairs = pairwise(before)
    return next((word for flag, word in pairs if word in names and flag != "--folder"), None)


def _from_help(before: Sequence[str], flag: bool) -> list[str]:
    """Return the flags of the command that ``before`` begins with, or the values of its last word
    where the help names them."""
    command, algo = before[0], _algorithm(before)
    if command in ("train", "describe", "pbt") and algo:  # the flags of pbt come before it
        flags = _flags(["train", algo, "--help-all"])
    elif command in ("train", "describe"):
        return []
    else:
        flags = _flags([command, "--help"])
    if flag:
        return re.findall(r"(?<!\S)--[a-z][\w.-]*", flags)
    choices = re.search(rf"(?<!\S){re.escape(before[-1])} \[?\{{([^}}]*)\}}", flags)
    return choices[1].split(",") if choices else []


def _flags(command: list[str]) -> str:
    """Return the flags in the help that a command prints, with the names of their values: the left
    column, one line for each flag."""
    from sampleforge.cli import main

    os.environ["COLUMNS"] = "120"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(command)
    lines = printed.getvalue().splitlines()
    found = [re.match(r"[│ ] (--.*?)(?=  | ?│|$)", line) for line in lines]
    return "\n".join(each[1] for each in found if each)

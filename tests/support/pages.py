"""What the pages of the documentation show: blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from textwrap import dedent
from typing import NamedTuple

from tests.support import PAGES, REPO

TEXTS = {str(path.relative_to(REPO)): path.read_text(encoding="utf-8") for path in PAGES}
"""Page -> its text."""
_BLOCK = re.compile(r"^( *)```([\w-]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of a page."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """Return all blocks of a page, those without a language too."""
    return [Block(language, dedent(code)) for _, language, code in _BLOCK.findall(text)]


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a block of the language bash, as words; none for other languages."""
    if block.language != "bash":
        return []
    lines = block.text.replace("\\\n", " ").splitlines()
    parts = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [words for words in parts if words]


def arguments(program: str, text: str) -> list[list[str]]:
    """Return the words after ``program``, a script or a command, in every command of a page that
    runs it, in a container or not."""
    found = []
    for words in (words for block in blocks(text) for words in commands(block)):
        names = [word.rpartition("/")[2] for word in words]
        starts = {"sampleforge", "python", "torchrun"}
        if program in names and (names[0] in starts or words[:2] == ["docker", "run"]):
            found.append(words[names.index(program) + 1 :])
    return found

"""What an error's traceback, as text, says in one line."""

from __future__ import annotations

import re

HEAD = "Traceback (most recent call last):"
LINK = re.compile(r"^(?:The above exception was|During handling of the above).*$", re.MULTILINE)


def causes(text: str) -> str:
    """Return in one line the errors that the tracebacks in ``text`` end with, each with its type,
    message and notes, and those that have caused it after it. Without a traceback: the last line,
    which names the cause in messages that begin with the stacks of a process."""
    found = [_error_of(part.strip()) for part in LINK.split(text.strip())]
    return ", caused by ".join(filter(None, reversed(found)))


def _error_of(text: str) -> str:
    """Return the lines of one traceback after its last frame as one line."""
    _, found, rest = text.rpartition(HEAD)
    if not found:  # no traceback, or a cause that was never raised, which has none
        return text.splitlines()[-1].replace(" (the stacks are above)", "") if text else ""
    lines = [line for line in rest.splitlines() if line.strip()]
    begin = next((i for i, line in enumerate(lines) if line[0] != " "), len(lines))
    return " ".join(line.strip() for line in lines[begin:])

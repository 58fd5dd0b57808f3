"""What an error's traceback, as text, says in one line."""

from __future__ import annotations

import re
import traceback

HEAD = "Traceback (most recent call last):"
ERROR = re.compile(r"[A-Za-z_][\w.]*: ")
"""The beginning of an error's line: its type."""
FRAME = re.compile(r"^\s+File ", re.MULTILINE)
BARE = re.compile(r"[A-Za-z_][\w.]*")
"""The line of an error without a message."""
PLACE = re.compile(
    r'^\s+File "(?:.*/)?(.+)", line (\d+)(?:, in .*)?(?:\n\s+(?!File )([^\s~^].*))?', re.MULTILINE
)
"""The file, the line and, if it can be read, the source of a frame."""
LINK = re.compile(r"^(?:The above exception was|During handling of the above).*$", re.MULTILINE)


def causes(text: str) -> str:
    """Return in one line the errors that the tracebacks in ``text`` end with, each with its type,
    message and notes, and those that have caused it after it, if they say more. An error without a
    message has the line that raised it. Of a message that begins with the stacks of a process: the
    last line, which names the cause."""
    found: list[str] = []
    for part in reversed(LINK.split(text.strip())):
        error = _error_of(part.strip())
        if error and not (found and found[-1].startswith(error)):
            found.append(error)
    return ", caused by ".join(found)


def in_words(error: BaseException) -> str:
    """Return an error that was raised in one line, as `causes` has it."""
    return causes("".join(traceback.format_exception(error)))


def _error_of(text: str) -> str:
    """Return the lines of one traceback after its last frame as one line."""
    _, found, rest = text.rpartition(HEAD)
    lines = [line for line in rest.splitlines() if line.strip()]
    if not found:  # no traceback, or an error that was never raised, which has none
        begin = next((i for i, line in enumerate(lines) if ERROR.match(line)), -1)
        if not lines or begin < 0 or FRAME.search(text):
            return lines[-1].replace(" (the stacks are above)", "") if lines else ""
    else:
        begin = next((i for i, line in enumerate(lines) if line[0] != " "), len(lines))
        if lines[begin:] and BARE.fullmatch(lines[begin]):
            lines[begin] += _place("\n".join(lines[:begin]))
    return " ".join(line.strip() for line in lines[begin:])


def _place(frames: str) -> str:
    """Return where the last of the ``frames`` of a traceback is, to be set after an error."""
    found = PLACE.findall(frames)
    if not found:
        return ""
    file, number, source = found[-1]
    return f" at {source} ({file}, line {number})" if source else f" ({file}, line {number})"

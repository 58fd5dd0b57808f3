"""Reading of files below one folder, which may hold anything: links, pipes, huge files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

Place = tuple[str, ...]
"""A folder, as the names of the folders on the way to it; empty for the root."""
ROOT_ID = "."


class Refused(Exception):
    """A path that is not served: it leads out of the folder, or is no regular file."""


class Entries(NamedTuple):
    """The names of the folders and of the regular files in a folder; links are neither."""

    folders: list[str]
    files: set[str]


class Tree:
    """Reads regular files below ``root``. Every step on the way is opened relative to the one
    before, and no link is followed, so that no name and no change of the folders meanwhile leads
    out of it. Pipes and devices are never opened.

    Its methods raise `Refused` for what is not served, and OSError for what cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def entries(self, place: Place) -> Entries:
        """Return what is in a folder."""
        folders, files = [], set()
        with self._folder(place) as handle, os.scandir(handle) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.add(entry.name)
        return Entries(sorted(folders), files)

    def stats(self, place: Place, names: Sequence[str]) -> dict[str, os.stat_result]:
        """Return the sizes and times of those of the files ``names`` in a folder that there are."""
        found = {}
        with self._folder(place) as handle:
            for name in names:
                try:
                    status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found[name] = status
        return found

    @contextmanager
    def open(self, place: Place, name: str) -> Iterator[int]:
        """Return a context with the file descriptor of a file in a folder, open for reading."""
        _check(name)
        with self._folder(place) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{name} is no regular file")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(name, flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was replaced meanwhile
                raise Refused(f"{name} is no regular file")
            yield handle
        finally:
            os.close(handle)

    def read(self, place: Place, name: str, limit: int) -> bytes:
        """Return the contents of a file. Raises Refused if it has more than ``limit`` bytes."""
        with self.open(place, name) as handle:
            size = os.fstat(handle).st_size
            if size > limit:
                raise Refused(f"{name} has {size:,} bytes; at most {limit:,} are shown")
            return read_at(handle, 0, limit)

    @contextmanager
    def _folder(self, place: Place) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.root, flags)
        try:
            for name in place:
                _check(name)
                deeper = os.open(name, flags, dir_fd=handle)
                os.close(handle)
                handle = deeper
            yield handle
        finally:
            os.close(handle)


def read_at(handle: int, offset: int, size: int) -> bytes:
    """Return up to ``size`` bytes of an open file from ``offset`` on; fewer only at its end."""
    parts = []
    while size > 0 and (data := os.pread(handle, size, offset)):
        parts.append(data)
        offset, size = offset + len(data), size - len(data)
    return b"".join(parts)


def to_id(place: Place) -> str:
    """Return the id of a folder: ASCII letters, whatever its names consist of."""
    return "/".join(quote(os.fsencode(name), safe="") for name in place) or ROOT_ID


def from_id(text: str) -> Place:
    """Return the folder that an id names. Raises Refused for an id that `to_id` does not return."""
    if text == ROOT_ID:
        return ()
    place = tuple(os.fsdecode(unquote_to_bytes(part)) for part in text.split("/"))
    for name in place:
        _check(name)
    if to_id(place) != text:
        raise Refused(f"{text!r} is no id of a folder")
    return place


def _check(name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Refused(f"{name!r} is no name of a file")


def shown(name: str) -> str:
    """Return a name of a file as text that every browser takes."""
    return os.fsencode(name).decode("utf-8", errors="replace")

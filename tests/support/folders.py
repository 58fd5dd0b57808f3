"""What is in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

NOT_COMPARED = {".lock"}
"""The lock has the number of the process that held it last."""


def trained_in(args: Sequence[str], cwd: Path) -> Path | None:
    """The run folder that a training command names; None for another command."""
    words = list(args)
    if "--run-dir" not in words[:-1] or words[0] not in ("train", "train.py"):
        return None
    return cwd / words[words.index("--run-dir") + 1]


def contents(folder: Path) -> dict[str, str] | None:
    """The files below a folder, by their relative paths, with the SHA-256 of their bytes, and the
    folders; None if there is no such folder."""
    if not folder.is_dir():
        return None
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
        if path.name not in NOT_COMPARED
    }

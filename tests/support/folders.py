"""What is in files and folders, and that a refused or failed start changes nothing in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_COMPARED = {".lock"}
"""The lock has the number of the process that held it last."""
IN_USE = "is in use by"
"""In the refusal of a folder that another process writes into meanwhile."""


def named_in(args: Sequence[str], cwd: Path) -> dict[str, dict[str, str] | None]:
    """The contents of all that the arguments of a command name below its working directory ``cwd``,
    whatever the command does with it; None for what is not there."""
    paths = {word: Path(os.path.abspath(cwd / word)) for word in args if word[:1] not in ("", "-")}
    return {word: contents(path) for word, path in paths.items() if cwd in path.parents}


def contents(path: Path) -> dict[str, str] | None:
    """The files below a folder, by their relative paths, with the SHA-256 of their bytes, and the
    folders; of a file its own bytes. None if there is nothing."""
    if os.path.isfile(path):  # without an error for words that are no paths
        return {"": hashlib.sha256(path.read_bytes()).hexdigest()}
    if not os.path.isdir(path):
        return None
    return {
        str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest()
        if each.is_file()
        else "folder"
        for each in sorted(path.rglob("*"))
        if each.name not in NOT_COMPARED
    }


def opened_unchanged(opened: Any) -> Any:
    """Return `Session.open` as ``opened``, which also raises AssertionError where it fails and has
    changed the run folder, whatever the reason."""

    def checked(session: Any) -> None:
        run_dir = session.asked.run_dir
        before = None if run_dir is None else contents(Path(run_dir))
        try:
            opened(session)
        except BaseException as error:
            if run_dir is not None and IN_USE not in str(error):
                after = contents(Path(run_dir))
                assert after == before, f"a refused run has changed {run_dir}: {error}"
            raise

    return checked

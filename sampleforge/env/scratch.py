"""A working directory of its own for every process that steps environments.

ViZDoom and MuJoCo drop log and config files wherever they run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_directory(parent: Path | None = None, *, cwd_importable: bool = True) -> Iterator[Path]:
    """Run the body in a fresh working directory, removed at the end.

    What was importable stays importable; the working directory becomes so with
    ``cwd_importable``. Relative paths of the caller are not valid inside: make
    them absolute before. ``parent``: where to make it (none: the system's temporary directory); a
    process that is killed leaves its directory there, for the owner of ``parent`` to remove.
    """
    home = Path.cwd()
    if cwd_importable:
        make_cwd_importable()
    sys.path[:] = [str(home / entry) for entry in sys.path]
    parent = None if parent is None else parent.resolve()
    with tempfile.TemporaryDirectory(
        prefix="sampleforge-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(home)


def make_cwd_importable() -> None:
    """Let ``package.module:factory`` be found in the working directory, as ``python -m`` does; a
    console script has its own folder on the path instead. Outlives a change of directory."""
    home = os.getcwd()
    if home not in sys.path:
        sys.path.insert(0, home)

"""A temporary working directory for every process that steps environments.

ViZDoom and MuJoCo write log and config files into the working directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_directory(parent: Path | None = None, *, cwd_importable: bool = True) -> Iterator[Path]:
    """Run the body in a new working directory, and remove the directory at the end.

    Modules that were importable stay importable; with ``cwd_importable``, those in the caller's
    working directory become so. Relative paths of the caller are not valid inside: make them
    absolute before. ``parent``: the parent of the new directory (None: the system's temporary
    directory). A process that is killed leaves its directory there, and the owner of ``parent``
    has to remove it.
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
            with suppress(FileNotFoundError):  # it was removed meanwhile
                os.chdir(home)


def make_cwd_importable() -> None:
    """Make modules in the working directory importable, for ``package.module:factory``, as ``python
    -m`` does; a console script has its own folder on the path instead. It still works after a
    change of directory."""
    home = os.getcwd()
    if home not in sys.path:
        sys.path.insert(0, home)

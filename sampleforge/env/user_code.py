"""Functions and modules of the user's own, which flags name as package.module:function; and the
working directory of the processes of a run: the caller's where code of the user's own takes part,
which may read and write files by relative paths, and a temporary one for all others, since ViZDoom
and MuJoCo write log and config files into the working directory."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.env.env_code import making


def import_function(flag: str, name: str) -> Callable[..., Any]:
    """Return the function ``name``, package.module:function, which ``flag`` names. Raises
    ConfigError if there is no such function."""
    attribute = name.partition(":")[2]
    module = import_user_module(flag, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"{flag} {name}: {module.__name__} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found


def import_user_module(
    flag: str, name: str, lacking: Callable[[str], ConfigError | None] = lambda _: None
) -> ModuleType:
    """Return the module of ``name``, package.module:attribute, which ``flag`` names. It may be in
    the working directory. Raises ConfigError if there is no such module: what ``lacking`` returns
    for the name of the missing one, if that is known to be a package's."""
    module_name = name.partition(":")[0]
    make_cwd_importable()
    try:
        with making():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        raise lacking(error.name) or ConfigError(
            f"{flag} {name}: there is no module {error.name!r}; modules are looked for in the "
            "working directory and where Python finds packages"
        ) from error


def keeps_directory(*environments: str | None) -> bool:
    """Return whether ``environments`` make the processes that step them stay in the caller's
    working directory: one of them is named as ``module:name``, or an object."""
    return any(name is not None and ":" in name for name in environments)


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

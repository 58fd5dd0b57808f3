"""The folders of commands that are given none: a new one for each, made before anything else."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sampleforge.config import ConfigError
from sampleforge.run.folder import stored_config
from sampleforge.run.folder.files import unusable
from sampleforge.run.folder.trust import check_places

C = TypeVar("C")


@contextmanager
def given_or_new(given: str | None, root: Path, stem: str, flag: str) -> Iterator[Path]:
    """Yield the path of the folder that is ``given``, which need not exist. If none is, make
    ``<stem>-<date>-<time>`` in ``root``, which no other process gets (``-2`` and so on follow if
    there is one already); it is removed at the end if there is nothing in it, and so is ``root``
    if this has made it.

    ``flag``: the flag that gives a folder. Raises ConfigError if none can be made."""
    if given:
        yield Path(given)
        return
    above = [folder for folder in (root, *root.parents) if not folder.exists()]
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = root / name, 1
    try:
        root.mkdir(parents=True, exist_ok=True)
        while not _is_made(path):
            count += 1
            path = root / f"{name}-{count}"
    except OSError as error:
        raise ConfigError(
            f"the folder {path} cannot be made: {error.strerror} ({error.filename}); give another "
            f"with {flag}"
        ) from error
    try:
        yield path
    finally:
        with suppress(OSError):  # not empty
            for folder in (path, *above):
                folder.rmdir()


def _is_made(folder: Path) -> bool:
    """Make a folder; return whether this call has made it: False if there was one already."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def run_dir_of(config: Any, resources: ExitStack, root: Path = Path("runs")) -> Path:
    """Return the folder that a config gives; if it gives none, a new one,
    ``runs/<env>-<algo>-<date>-<time>``, which ``resources`` removes if the run has not begun.
    Characters that are unusual in file names become dashes. Raises ConfigError."""
    env, algo = (
        re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") for text in (config.env, config.algo)
    )
    stem = f"{env or 'env'}-{algo}"
    return resources.enter_context(given_or_new(config.run_dir, root, stem, "--run-dir"))


def with_folder_and_seed(config: C, resources: ExitStack) -> C:
    """Return ``config`` with a run folder and a seed, so that the banner can show both. If they are
    not given, the folder is that of `run_dir_of`, and the seed that of the run in the folder or a
    random one."""
    asked: Any = config
    path = run_dir_of(config, resources)
    seed = asked.seed
    if seed is None:
        stored, known = path / "config.yaml", None
        try:
            if path.is_dir():
                check_places(path, (stored.name,))
                known = stored_config.read_yaml(stored).get("seed") if stored.is_file() else None
        except OSError as error:
            raise unusable(path, error) from error
        seed = known if isinstance(known, int) else secrets.randbelow(2**31)
    return dataclasses.replace(asked, run_dir=str(path), seed=seed)  # type: ignore[no-any-return]

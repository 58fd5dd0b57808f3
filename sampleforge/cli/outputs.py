"""What commands that read several folders and write a file have in common: warnings, and checks
before the work."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sampleforge.config import ConfigError
from sampleforge.tools.plots.figures import MISSING

FORMATS = (".png", ".pdf", ".svg")


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"Warning: {text}", file=sys.stderr)


def check_out(name: str) -> Path:
    """Return the file that --out names. Raises ConfigError if no figure can be written there, or
    matplotlib is missing."""
    out = check_file("--out", name)
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {name}: must end in one of {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(MISSING)
    return out


def check_file(flag: str, name: str) -> Path:
    """Return the file that a flag names. Raises ConfigError if none can be written there."""
    file = Path(name)
    if not os.path.isdir(file.parent):  # False also for a path that is too long
        raise ConfigError(f"{flag} {name}: there is no folder {file.parent}")
    if os.path.isdir(file):
        raise ConfigError(f"{flag} {name}: this is a folder; give the name of a file")
    try:
        os.lstat(file)
    except FileNotFoundError:
        pass
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{flag} {name}: {error.strerror}; give another file") from error
    _check_writable(flag, file if os.path.exists(file) else file.parent, file, "file")
    return file


def check_folder(flag: str, folder: Path) -> Path:
    """Return the ``folder`` that a flag names, which need not exist. Raises ConfigError if no files
    can be written there."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    if there != folder and not os.path.isdir(there):
        raise ConfigError(f"{flag} {folder}: {there} is a file; give another folder")
    _check_writable(flag, there, folder, "folder")
    return folder


def _check_writable(flag: str, there: Path, name: Path, kind: str) -> None:
    """Raise ConfigError, which names the ``kind`` that ``flag`` gives, unless ``there`` is
    writable."""
    if not os.access(there, os.W_OK):
        raise ConfigError(f"{flag} {name}: you may not write there; give another {kind}")


def check_given_once(folders: Sequence[Path], why: str) -> None:
    """Raise ConfigError, which says ``why`` not, for a folder that is given twice."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"{folder} is given twice, and would {why}; leave out one")
        seen.add(folder.resolve())

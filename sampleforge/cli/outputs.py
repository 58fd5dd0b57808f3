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
    if not file.parent.is_dir():
        raise ConfigError(f"{flag} {name}: there is no folder {file.parent}")
    if file.is_dir():
        raise ConfigError(f"{flag} {name}: this is a folder; give the name of a file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{flag} {name}: you may not write there; give another file")
    return file


def check_given_once(folders: Sequence[Path], why: str) -> None:
    """Raise ConfigError, which says ``why`` not, for a folder that is given twice."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"{folder} is given twice, and would {why}; leave out one")
        seen.add(folder.resolve())

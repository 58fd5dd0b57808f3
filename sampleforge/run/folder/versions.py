"""The versions of the packages that affect a run, read without importing them."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from sampleforge.version import __version__

REPOSITORY = Path(__file__).resolve().parents[3]


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of SampleForge, Python, torch, gymnasium and numpy, and the commit."""
    own: dict[str, str | None] = {"sampleforge": __version__, "git_commit": git_commit()}
    own["python"] = platform.python_version()
    return own | {name: installed_version(name) for name in ("torch", "gymnasium", "numpy")}


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """Return the commit of the checkout that SampleForge runs from, with "-dirty" if files have
    changed since; None outside a checkout or without git."""
    if not (repository / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

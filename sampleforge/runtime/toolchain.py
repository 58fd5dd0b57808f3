"""What torch.compile needs beside torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that says where torch keeps what it has compiled."""


def lacking(device: str) -> str | None:
    """What is missing to compile for ``device`` (cpu, cuda, cuda:N), with the remedy; or None."""
    if device.startswith("cuda") and importlib.util.find_spec("triton") is None:
        return "triton is missing, which comes with torch for CUDA on Linux: reinstall torch"
    variable, usual = ("CC", "gcc") if device.startswith("cuda") else ("CXX", _usual_cxx())
    compiler = os.environ.get(variable, usual)
    if shutil.which(compiler) is None:
        return (
            f"there is no compiler {compiler!r} (environment variable {variable}, or {usual}): "
            f"install one (apt install g++), or name one in {variable}"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are missing (Python.h): install them (apt install python3-dev)"
    return None


def _usual_cxx() -> str:
    """What torch takes where CXX is not set."""
    return "clang++" if sys.platform == "darwin" else "g++"

"""The capabilities of this machine: device, bfloat16, shared memory, and compilers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import psutil

from sampleforge.config import ConfigError
from sampleforge.runtime.cgroup import cgroup_memory_free


def resolve_device(asked: str) -> str:
    """Return the name of the device that ``asked`` (the value of --device) means. Raises
    ConfigError if the machine does not have it."""
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(f"--device {asked}: {error}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {asked}: this machine shows {torch.cuda.device_count()} CUDA devices; "
            "use --device cpu, or see `sampleforge doctor`"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked} is not supported; use auto, cpu, cuda or cuda:N")
    return asked


_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Names of bfloat16 instruction sets in /proc/cpuinfo (the last one on ARM)."""


def bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's instruction sets for bfloat16; without them bf16 is slower than fp32.
    The list is also empty on a system without /proc/cpuinfo."""
    if not cpuinfo.is_file():
        return []
    return sorted(_BF16 & set(re.findall(r"\w+", cpuinfo.read_text())))


def has_bf16(device: str) -> bool:
    """Return whether ``device`` is known to have instructions for bfloat16. Without them it is
    emulated: convolutions took ten times as long as in fp32 on a CPU with AVX2
    (benchmarks/results/precision.md)."""
    return device != "cpu" or bool(bf16_instructions())


def shared_memory_free() -> int | None:
    """Return the bytes of shared memory that can be had now: what is available to this process, its
    container or control group (see `sampleforge.runtime.cgroup`). None where the system keeps
    shared memory in a place of its own."""
    if sys.platform != "linux":
        return None
    return memory_available()


def memory_available() -> int:
    """Return the bytes of memory that this process and its children can still have."""
    available = int(psutil.virtual_memory().available)
    free = cgroup_memory_free()
    return available if free is None else min(available, free)


def human_bytes(count: float) -> str:
    """Return a number of bytes with its unit, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable with the folder where torch keeps compiled code."""


def lacking(device: str) -> str | None:
    """Return what torch.compile lacks for ``device`` (cpu, cuda, cuda:N), with the remedy; or
    None."""
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
    """Return the compiler that torch uses if CXX is not set."""
    return "clang++" if sys.platform == "darwin" else "g++"

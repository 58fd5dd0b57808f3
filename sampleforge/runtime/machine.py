"""The capabilities of this machine: cores, devices, bfloat16, shared memory, and compilers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import psutil

from sampleforge.config import ConfigError
from sampleforge.runtime.limits import cgroup_memory_free
from sampleforge.runtime.processes import available_cores, cores_to_pin, number_gpus_by_bus


def _capability(gpu: int) -> tuple[int, int]:
    """Return the compute capability of CUDA device ``gpu``. This initialises CUDA."""
    import torch

    return torch.cuda.get_device_capability(gpu)


@dataclass(frozen=True)
class Machine:
    """What the sizes of a run are chosen for: the numbers of ``cores`` and of ``gpus`` that this
    process may use. ``capability(i)``: the compute capability of the i-th GPU, such as (8, 0);
    ``memory``: bytes that are available (None: they are asked for when they count); ``pins``:
    whether processes can be pinned to its cores."""

    cores: int
    gpus: int = 0
    capability: Callable[[int], tuple[int, int]] = _capability
    memory: int | None = None
    pins: bool = True


_ASSUMED: ContextVar[Machine | None] = ContextVar("assumed machine", default=None)


def this_machine() -> Machine:
    """Return the machine that runs are planned for: this one, unless another is `assumed`."""
    machine = _ASSUMED.get()
    if machine is not None:
        return machine
    import torch

    number_gpus_by_bus()
    pins = bool(cores_to_pin())
    # The driver may count GPUs that this torch cannot use, if it is older than torch's CUDA.
    gpus = torch.cuda.device_count()
    gpus = gpus if gpus and torch.cuda.is_available() else 0
    return Machine(len(available_cores()), gpus, pins=pins)


@contextmanager
def assumed(machine: Machine) -> Iterator[None]:
    """Return a context in which runs are planned for ``machine`` in the place of this one: for
    tables of plans and for tests. Nothing can be started in it that this machine does not have."""
    token = _ASSUMED.set(machine)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def resolve_device(asked: str, *, on_gpu: bool = True) -> str:
    """Return the name of the device that ``asked`` (the value of --device) means. ``on_gpu``:
    whether auto takes a GPU, if there is one. Raises ConfigError if the machine does not have the
    device."""
    import torch

    gpus = this_machine().gpus
    if asked == "auto":
        return "cuda" if gpus and on_gpu else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(f"--device {asked}: {error}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(
            f"--device {asked}: this machine shows {gpus} CUDA devices; "
            "use --device cpu, or see `sampleforge doctor`"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked} is not supported; use auto, cpu, cuda or cuda:N")
    return asked


_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Names of bfloat16 instruction sets in /proc/cpuinfo (the last one on ARM)."""


def bf16_instructions() -> list[str]:
    """Return the processor's instruction sets for bfloat16; without them bf16 is slower than fp32.
    The list is also empty on a system without /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return []
    return sorted(_BF16 & set(re.findall(r"\w+", cpuinfo.read_text())))


BF16_CAPABILITY = (8, 0)
"""Compute capability from which on a GPU has convolutions and matrix products in bfloat16."""


def has_bf16(device: str) -> bool:
    """Return whether ``device`` is known to have instructions for bfloat16; "cuda" are all GPUs.
    Without them it is emulated: convolutions took ten times as long as in fp32 on a CPU with AVX2
    (benchmarks/results/precision.md)."""
    if device == "cpu":
        return bool(bf16_instructions())
    machine, (_, _, index) = this_machine(), device.partition(":")
    used = [int(index)] if index else range(machine.gpus)
    return all(machine.capability(gpu) >= BF16_CAPABILITY for gpu in used)


def shared_memory_free() -> int | None:
    """Return the bytes of shared memory that can be had now: what is available to this process, its
    container or control group (see `sampleforge.runtime.limits`). None where the system keeps
    shared memory in a place of its own."""
    if sys.platform != "linux":
        return None
    return memory_available()


def memory_available() -> int:
    """Return the bytes of memory that this process and its children can still have."""
    machine = _ASSUMED.get()
    if machine is not None and machine.memory is not None:
        return machine.memory
    available = int(psutil.virtual_memory().available)
    free = cgroup_memory_free()
    return available if free is None else min(available, free)


def human_bytes(count: float) -> str:
    """Return a number of bytes with its unit, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} PiB"


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

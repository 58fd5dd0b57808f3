"""The findings of `sampleforge doctor` on the machine and the installation."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sampleforge.run.folder.versions import git_commit, installed_version, too_old
from sampleforge.runtime.limits import cgroup_cpu_quota, cgroup_memory_limit
from sampleforge.runtime.machine import bf16_instructions, lacking
from sampleforge.version import __version__

GIB = 1 << 30
PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "faster-fifo",
    "tensorboardX",
    "threadpoolctl",
    "tyro",
    "PyYAML",
    "rich",
    "psutil",
    "safetensors",
    "setproctitle",
)


@dataclass(frozen=True)
class MachineFinding:
    """The result of one check. ``state``: "ok"; "lacks": only some runs need it; "bad": every run
    needs it."""

    state: Literal["ok", "lacks", "bad"]
    name: str
    text: str


def findings() -> Iterator[MachineFinding]:
    """Yield the results of all checks, the fast ones first."""
    commit = git_commit()
    yield MachineFinding(
        "ok", "SampleForge", __version__ + (f", commit {commit}" if commit else "")
    )
    yield _python()
    packages = list(_packages())
    yield from packages
    yield _cores()
    yield _shared_memory()
    if any(finding.state == "bad" for finding in packages):
        return  # the following checks need these packages
    yield _memory()
    yield from _families()
    yield _compiler()
    yield _optional("plots", "matplotlib", "plot")
    yield _optional("compression", "lz4", "compress")
    yield from _torch()


def _python() -> MachineFinding:
    state: Literal["ok", "bad"] = "ok" if sys.version_info >= (3, 11) else "bad"
    remedy = "" if state == "ok" else "; install Python 3.11 or newer"
    return MachineFinding(
        state, "Python", f"{platform.python_version()} on {platform.platform()}{remedy}"
    )


def _packages() -> Iterator[MachineFinding]:
    old = too_old()
    for package in PACKAGES:
        version = installed_version(package)
        if version is None:
            yield MachineFinding("bad", package, f"missing: pip install {package}")
        elif package in old:
            remedy = f"pip install '{package}>={old[package][1]}'"
            yield MachineFinding("bad", package, f"{version} is too old: {remedy}")
        else:
            yield MachineFinding("ok", package, version)


def _usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cores() -> MachineFinding:
    count, usable = os.cpu_count() or 1, _usable_cores()
    note = "" if usable == count else " (limited by the affinity or the container)"
    quota = cgroup_cpu_quota()
    if quota is not None:
        note += f"; this container's CPU quota is worth {quota:g}"
    return MachineFinding("ok", "cores", f"{usable} usable of {count}{note}")


def _memory() -> MachineFinding:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available"
    limit = cgroup_memory_limit()
    if limit is not None:
        text += f"; this container may use {limit / GIB:.1f} GiB"
    return MachineFinding("ok", "memory", text)


def _shared_memory() -> MachineFinding:
    """Some simulators (ViZDoom) use it. SampleForge's own shared memory is not in it."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return MachineFinding("ok", "shared memory", f"no {folder} on this system")
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free in {folder}"
    if usage.free >= GIB / 64:
        return MachineFinding("ok", "shared memory", text)
    remedy = "; enlarge it (docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm)"
    return MachineFinding("lacks", "shared memory", text + remedy)


def _compiler() -> MachineFinding:
    missing = lacking("cpu")
    if missing is None:
        return MachineFinding("ok", "compiler", "for --compile on the CPU")
    return MachineFinding("lacks", "compiler", f"for --compile: {missing}")


def _families() -> Iterator[MachineFinding]:
    from sampleforge.env.registry import families

    if not families():
        text = "no environment families are registered: pip install -e ."
        yield MachineFinding("lacks", "environments", text)
    for family in families():
        if family.requires is None:
            yield MachineFinding("ok", family.name, "built in")
        else:
            yield _optional(family.name, family.requires, family.extra)


def _optional(name: str, module: str, extra: str | None) -> MachineFinding:
    """Check a library that only some runs need."""
    if importlib.util.find_spec(module) is None:
        return MachineFinding(
            "lacks", name, f'{module} is missing: pip install "sampleforge[{extra}]"'
        )
    version = installed_version(module)
    return MachineFinding("ok", name, f"{module} {version}" if version else module)


def _torch() -> Iterator[MachineFinding]:
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield MachineFinding("ok", "CUDA", f"{torch.version.cuda}: {', '.join(devices)}")
    else:
        built = torch.version.cuda is not None
        why = "no usable GPU or driver" if built else "this build of torch has no CUDA"
        yield MachineFinding("ok", "CUDA", f"{why}; training runs on the CPU")
    names = bf16_instructions()
    text = f"CPU has {', '.join(names)}" if names else "no instructions on this CPU; fp32 is faster"
    yield MachineFinding("ok", "bf16", text)

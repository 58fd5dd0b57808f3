"""The NUMA nodes of this machine: groups of cores, each with a part of the memory that is nearer to
them than to the cores of other nodes."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sampleforge.runtime.processes import cores_to_pin

log = logging.getLogger(__name__)

NODES = Path("/sys/devices/system/node")
MPOL_DEFAULT, MPOL_PREFERRED = 0, 1
"""Memory policies of linux/mempolicy.h: the node of the core that needs the memory; a stated node,
and others where it is full."""
SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The number of the system call, which the C library has no function for."""
LARGEST_NODE = 1023
"""The largest number of a node that Linux can have."""


class NumaNode(NamedTuple):
    """A node with those of its ``cores`` that this process may use, at least one."""

    number: int
    cores: tuple[int, ...]


def numa_nodes(folder: Path = NODES) -> list[NumaNode]:
    """Return the nodes, by number; none where the system does not list them in ``folder``, or where
    processes cannot be pinned to cores."""
    usable = set(cores_to_pin())
    nodes = []
    for node in folder.glob("node[0-9]*"):
        cores = tuple(core for core in _numbers((node / "cpulist").read_text()) if core in usable)
        if cores:
            nodes.append(NumaNode(int(node.name.removeprefix("node")), cores))
    return sorted(nodes)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as ``0-3,8,10-11``; an empty one has none."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def node_for_group(index: int, threads: int, folder: Path = NODES) -> NumaNode | None:
    """Return the node for the ``index``-th of several groups of processes, which take the nodes in
    turn. ``threads``: how many each group has. None if there is only one node, or if it has fewer
    cores than that: then the group may be anywhere."""
    nodes = numa_nodes(folder)
    if len(nodes) < 2:
        return None
    node = nodes[index % len(nodes)]
    return node if threads <= len(node.cores) else None


def node_of(cores: Collection[int] | None, folder: Path = NODES) -> NumaNode | None:
    """Return the node that has all of these cores (None: those of the machine); None if there is
    none, or only one node."""
    nodes = numa_nodes(folder)
    if cores is None or len(nodes) < 2:
        return None
    return next((node for node in nodes if set(cores) <= set(node.cores)), None)


@contextmanager
def memory_on(node: NumaNode | None) -> Iterator[None]:
    """Return a context in which the memory that this thread reserves is that of ``node``, while it
    has any left; None changes nothing.

    `sampleforge.shared.arrays` reserves all of its memory at once, so that its pages would
    otherwise be on the node on which the driver happens to run.
    """
    if node is None:
        yield
        return
    _set_policy(MPOL_PREFERRED, 1 << node.number)
    try:
        yield
    finally:
        _set_policy(MPOL_DEFAULT, 0)


def _set_policy(policy: int, mask: int) -> None:
    """Set the memory policy of this thread. It only makes a run faster, so one that may not be set
    (containers may forbid it) is a warning."""
    number = SYS_SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return
    words = (ctypes.c_ulong * (LARGEST_NODE // 64 + 1))()
    for at in range(len(words)):
        words[at] = mask >> 64 * at & (1 << 64) - 1
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    # The kernel reads one bit less than it is told.
    size = ctypes.c_ulong(LARGEST_NODE + 2 if mask else 0)
    if syscall(ctypes.c_long(number), ctypes.c_int(policy), words if mask else None, size):
        log.warning(
            "memory cannot be placed on a NUMA node (%s): the run may be slower; "
            "--no-set-workers-cpu-affinity leaves its place to the kernel",
            os.strerror(ctypes.get_errno()),
        )

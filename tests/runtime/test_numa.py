"""NUMA nodes, read from files as the kernel has them, and memory that is reserved on one."""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path

import pytest

from sampleforge.runtime import numa
from sampleforge.runtime.numa import NumaNode, memory_on, node_for_group, node_of, numa_nodes

SYS_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may use cores 0 to 11."""
    monkeypatch.setattr(numa, "cores_to_pin", lambda: list(range(12)))


def tree(folder: Path, **cpulists: str) -> Path:
    """Write the list of each node's cores; return the folder of all."""
    for node, cpulist in cpulists.items():
        (folder / node).mkdir()
        (folder / node / "cpulist").write_text(f"{cpulist}\n")
    (folder / "online").write_text("0\n")
    return folder


@pytest.mark.usefixtures("cores")
def test_nodes_have_the_cores_that_this_process_may_use(tmp_path: Path) -> None:
    folder = tree(tmp_path, node0="0-2,8", node2="3,9-20", node10="4-5", node1="30-40", node3="")
    assert numa_nodes(folder) == [
        NumaNode(0, (0, 1, 2, 8)),
        NumaNode(2, (3, 9, 10, 11)),
        NumaNode(10, (4, 5)),
    ]


@pytest.mark.usefixtures("cores")
def test_groups_take_the_nodes_in_turn_if_their_threads_fit(tmp_path: Path) -> None:
    folder = tree(tmp_path, node0="0-3", node1="4-7", node4="8-11")
    chosen = [node_for_group(index, 4, folder) for index in range(4)]
    assert [node and node.number for node in chosen] == [0, 1, 4, 0]
    assert node_for_group(0, 5, folder) is None
    assert node_of([5, 7], folder) == NumaNode(1, (4, 5, 6, 7))
    assert node_of([3, 4], folder) is None
    assert node_of(None, folder) is None


@pytest.mark.usefixtures("cores")
def test_one_node_or_none_places_nothing(tmp_path: Path) -> None:
    one = tree(tmp_path, node0="0-3", node1="100-103")
    for folder in (one, tmp_path / "missing"):
        assert node_for_group(0, 1, folder) is None
        assert node_of([0], folder) is None


def policy() -> tuple[int, int]:
    """The memory policy of this thread, and the mask of its nodes."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
    number = SYS_GET_MEMPOLICY[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    size, nothing = ctypes.c_ulong(1025), ctypes.c_void_p(0)
    assert call(ctypes.c_long(number), ctypes.byref(mode), mask, size, nothing, nothing) == 0
    return mode.value, mask[0]


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SYS_GET_MEMPOLICY,
    reason="memory policies are Linux's, and their system calls are known on these machines",
)
def test_memory_is_reserved_on_a_node_within_its_context_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        before = policy()
    except AssertionError:
        pytest.skip("this container forbids memory policies")
    node = NumaNode(numa_nodes()[0].number, (0,))
    with memory_on(node):
        assert policy() == (numa.MPOL_PREFERRED, 1 << node.number)
    assert policy() == before == (numa.MPOL_DEFAULT, 0)
    with memory_on(None):
        assert policy() == before
    assert not caplog.text
    with memory_on(NumaNode(999, (0,))):
        assert "cannot be placed on a NUMA node (Invalid argument)" in caplog.text
    assert policy() == before

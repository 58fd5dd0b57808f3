"""How many threads the numerical libraries of a process use."""

from __future__ import annotations

from collections.abc import Callable

import threadpoolctl
import torch


def limit_threads(count: int) -> Callable[[], object]:
    """Let torch, and every BLAS and OpenMP pool that is loaded by now, use ``count`` threads.

    Simulators bring pools of their own: call it again when they have been imported. Returns what
    restores the limits that were there before.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    pools = threadpoolctl.threadpool_limits(limits=count)

    def restore() -> None:
        pools.restore_original_limits()
        torch.set_num_threads(before)

    return restore

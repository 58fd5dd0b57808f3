"""The number of threads that the numerical libraries of a process use."""

from __future__ import annotations

from collections.abc import Callable

import threadpoolctl
import torch


def limit_threads(count: int) -> Callable[[], object]:
    """Limit torch, and every BLAS and OpenMP pool that is loaded already, to ``count`` threads.

    Simulators load pools of their own: call this again after importing them. Return a function that
    restores the previous limits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    pools = threadpoolctl.threadpool_limits(limits=count)

    def restore() -> None:
        pools.restore_original_limits()
        torch.set_num_threads(before)

    return restore

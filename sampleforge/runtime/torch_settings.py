"""What belongs to all of a process: the threads of its libraries, and torch's default dtype and
device."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def tame_tqdm() -> Callable[[], None]:
    """Have tqdm start no thread, and make no lock for other processes, from now on, if it is
    installed; return the function that takes this back.

    Torch's interpreter of graphs, which compilation and export use, makes a progress bar, though a
    disabled one. The first bar of a process starts a thread, unless tqdm's interval is 0, and makes
    a named semaphore, unless it has a lock: the semaphore would outlive a worker that is killed.
    """
    if importlib.util.find_spec("tqdm") is None:
        return lambda: None
    bars: Any = importlib.import_module("tqdm").tqdm
    before, bars.monitor_interval = bars.monitor_interval, 0
    lock = None if hasattr(bars, "_lock") else threading.RLock()
    if lock is not None:
        bars.set_lock(lock)

    def restore() -> None:
        bars.monitor_interval = before
        if lock is not None and bars._lock is lock:
            del bars._lock

    return restore


@contextmanager
def usual_torch() -> Iterator[None]:
    """Make float32 and the CPU torch's defaults for the body, or for the function that this
    decorates. A script may have set others, and weights, states and batches must not depend on it.
    It takes 2 us."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        if torch._C._len_torch_function_stack():  # a default device is such a mode
            with torch.device("cpu"):
                yield
        else:
            yield
    finally:
        torch.set_default_dtype(before)

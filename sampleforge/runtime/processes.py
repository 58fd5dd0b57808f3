"""How SampleForge starts processes, and what a child process is.

On Linux children are forked from a server that has imported torch and gymnasium already: 0.02 s and
little private memory each, against 4 s and 222 MB by spawn. Elsewhere they are spawned.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Iterable
from multiprocessing.context import BaseContext

PRELOAD = "sampleforge.topologies.preload"
"""What the fork server imports: a name, because what it means lies above this floor."""


def process_context() -> BaseContext:
    """The start method of every SampleForge process, with everything heavy preloaded."""
    # Threads of numerical libraries are counted per process; a learner raises its own later. Set
    # before numpy is imported anywhere, so that idle pools are never made.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


def start_fork_server() -> None:
    """Begin the fork server's imports now, so that they run beside our own."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        process_context()
        # Inherited: without it, Ctrl-C in the first second would end the server in the middle of
        # its imports, with a traceback.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)


def become_worker(name: str, *, cores: Iterable[int] | None = None, niceness: int = 0) -> None:
    """Set up the calling child process: title, signals, threads, cores, death with its parent."""
    import setproctitle
    import torch

    setproctitle.setproctitle(f"sampleforge: {name}")
    # The driver alone decides what Ctrl-C means; the terminal sends it to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
    if niceness:
        os.nice(niceness)
    die_with_parent()


def die_with_parent() -> None:
    """End this process when its parent has died, however it died.

    The parent's sentinel is a pipe whose other end only the parent holds. On Linux the kernel sends
    SIGKILL when that end closes: a simulator that hangs in C with the interpreter's lock in its
    hand dies too, which a thread of ours would not reach. (PDEATHSIG would follow the fork server,
    which outlives a killed driver as long as it has children.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process dies with its parent"
    if sys.platform == "linux":
        _kill_at_hangup(parent.sentinel)
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _kill_at_hangup(pipe: int) -> None:
    """Have this process killed when the other end of ``pipe`` closes, or has closed already."""
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if multiprocessing.connection.wait([pipe], 0):
        os._exit(1)


def available_cores() -> list[int]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

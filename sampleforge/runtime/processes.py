"""The start of worker processes, and the set-up of a child process.

On Linux children are forked from a server that has imported torch and gymnasium already: 0.02 s and
little private memory each, against 4 s and 222 MB by spawn. Other systems use spawn.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType

from sampleforge.config import ConfigError
from sampleforge.runtime.limits import cgroup_cpu_quota, raise_limit
from sampleforge.runtime.streams import make_lasting

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Constants of glibc's malloc.h."""
LARGEST_IN_HEAP = 32 << 20
"""Bytes: the largest threshold that glibc accepts. A larger block is mapped by itself."""
KEPT = 1 << 30
"""Bytes of free memory at the heap's end that are not given back."""
GROWTH = 16 << 20
"""Bytes by which the heap grows at once; they take no memory before they are written to."""


def keep_freed_memory() -> bool:
    """Make the calling process keep the memory that it frees, for its next allocation, and return
    whether its C library can.

    An update allocates and frees the same tensors again and again. By default glibc gives such
    memory back to the kernel, which then clears every page of it for the next update: a learner of
    CartPole spent a third of its time so, in some runs and not in others, depending on what lay
    at the end of its heap. The process stays as large as its largest update.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    settings = {M_MMAP_THRESHOLD: LARGEST_IN_HEAP, M_TRIM_THRESHOLD: KEPT, M_TOP_PAD: GROWTH}
    return all([mallopt(name, value) == 1 for name, value in settings.items()])


PRELOAD = "sampleforge.runners.preload"
"""The module that the fork server imports; only its name, because lower layers do not import it."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""The signals that ask a driver to end. SIGUSR2 asks the jobs of sweeps and populations alone:
Slurm sends it before a job's time is over."""
_OUTLIVED = tuple(number for number in ENDING if number != signal.SIGINT)
"""Those of them that workers handle and do nothing; SIGINT they ignore."""
PRELOADED = "SAMPLEFORGE_FORK_SERVER_IMPORTS"
"""The environment variable of a fork server with the modules that its children need."""
PATH_BEFORE = "SAMPLEFORGE_PYTHONPATH_BEFORE"
"""The environment variable of a fork server with the PYTHONPATH of the driver."""
STARTED_BY_THREAD = "SAMPLEFORGE_FORK_SERVER_OF_THREAD"
"""The environment variable of a fork server that must not end with the thread that starts it."""
LONGEST_TEMP_DIR = 60
"""Bytes of a folder's path in which multiprocessing can open sockets: their addresses have at most
107, of which it adds 32 or more."""
PR_SET_PDEATHSIG = 1
"""A constant of linux/prctl.h."""


class MissingMainGuard(SystemExit):
    """A script starts a run wherever it is imported, also in the child processes of that run. Where
    it is not caught it ends the script with its one sentence, without a traceback, and exit code 1.
    """

    def __init__(self, script: str = "this script") -> None:
        super().__init__(
            f"{script} starts a run as soon as it is imported, and the processes of a run import "
            "it: put the lines that start it under `if __name__ == '__main__':`"
        )


def check_main_guard() -> None:
    """Raise MissingMainGuard if this process is a child that is importing the script of its parent:
    processes cannot be started then, and would start the script for ever."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MissingMainGuard


def check_may_have_children() -> None:
    """Raise ConfigError if this process is a daemonic child, such as a worker of
    multiprocessing.Pool: such a process can start no others."""
    process = multiprocessing.current_process()
    if process.daemon:
        raise ConfigError(
            f"this process ({process.name}) is a daemonic one, as the workers of "
            "multiprocessing.Pool are, and can start no processes, which the workers of a run are; "
            "begin the run in one of concurrent.futures.ProcessPoolExecutor(mp_context="
            "multiprocessing.get_context('spawn')) or of Process(daemon=False), or train with "
            "serial=True (--serial)"
        )


def forget_piped_main() -> None:
    """Have child processes import no main module if the program came through standard input: no
    file has it, and multiprocessing would look for one named <stdin>."""
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":
        del main.__file__


def is_interactive() -> bool:
    """Return whether the main module is an interactive session, a notebook, a program from
    standard input or the ``__main__.py`` of a package (``python -m package``), whose classes and
    functions no other process can import: multiprocessing does not."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name).rpartition(".")[2] == "__main__"
    return getattr(main, "__file__", "<stdin>") == "<stdin>"


def process_context() -> BaseContext:
    """Return the multiprocessing context of every SampleForge process, whose fork server has
    imported the large modules."""
    # One thread per numerical library in each process; a learner raises its number later. Set
    # before any child imports numpy, so that idle thread pools are never created.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    number_gpus_by_bus()
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


def number_gpus_by_bus() -> None:
    """Have CUDA number the GPUs as the driver's own tools do, so that figures belong to the right
    one. Before CUDA starts."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def start_fork_server(modules: Iterable[str] = ()) -> None:
    """Start the fork server now, so that its imports, among them ``modules``, run in parallel with
    those of this process. Raises MissingMainGuard in a child that is importing its parent's
    script."""
    check_main_guard()
    forget_piped_main()
    if sys.platform == "linux":
        with _STARTING:
            _start_fork_server(modules)


_STARTING = threading.Lock()
"""Held while the fork server is started: its environment is that of one thread's session."""


def _start_fork_server(modules: Iterable[str]) -> None:
    from multiprocessing import forkserver, resource_tracker

    _check_not_forked_after_a_run()
    process_context()
    _keep_addresses_short()
    raise_limit()  # the server inherits it, and its children from it
    variables = {PRELOADED: " ".join(modules), **_search_path()}
    if threading.current_thread() is not threading.main_thread():
        variables[STARTED_BY_THREAD] = "1"
    # A signal that ends the driver goes to its whole process group, but the server and its
    # children must live until the driver has saved a checkpoint: they inherit the mask.
    # Signals are blocked, not ignored, so that one that arrives now still reaches this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        resource_tracker.ensure_running()  # the server needs it; it unblocks some signals
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        with _environment(variables):
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_not_forked_after_a_run() -> None:
    """Raise ConfigError if the fork server that this process knows, of a run or of the user's own,
    was started by the process that it was forked from: it cannot use that, and after a run torch
    waits for ever for threads that it lacks."""
    from multiprocessing import forkserver

    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None:
        return
    try:  # the kernel is asked: /proc may be the host's, with other numbers, in a PID namespace
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        with suppress(OSError):  # it has ended, and something else has waited for it
            os.kill(pid, 0)
            raise ConfigError(
                "this process was forked from one that had begun a run, or started a fork server, "
                "and can start no workers; begin the run in a process that is spawned: "
                "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
            ) from None


def _search_path() -> dict[str, str]:
    """Return the environment variables with which a fork server imports this copy of the package,
    and not one that is installed beside it: up to Python 3.13.0 at least, it searches for modules
    where a new interpreter does, not where the driver does."""
    folder = Path(__file__).parents[2]
    if folder.name in ("site-packages", "dist-packages"):
        return {}
    before = os.environ.get("PYTHONPATH", "")
    return {PATH_BEFORE: before, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), before)))}


def restore_search_path() -> None:
    """Have the programs that a fork server's children start search for modules where those of the
    driver do."""
    before = os.environ.pop(PATH_BEFORE, None)
    if before:
        os.environ["PYTHONPATH"] = before
    elif before is not None:
        del os.environ["PYTHONPATH"]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have the processes that start within it inherit these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def remove_socket_folder() -> None:
    """Remove the folder of the fork server's socket, for a process that ends by `os._exit`:
    multiprocessing does it only at a regular exit. Its name is in no public place."""
    folder = multiprocessing.process.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_addresses_short() -> None:
    """Have multiprocessing keep its sockets in /tmp if the path of $TMPDIR is so long that a socket
    in it would have no address."""
    from multiprocessing import util

    if len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TEMP_DIR:
        return
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        util.get_temp_dir()  # the first call decides
    finally:
        tempfile.tempdir = before


def wake_fork_server() -> None:
    """Continue the fork server, if it was stopped: processes start, and are known to have ended,
    only through it. Its pid has no public name."""
    if sys.platform == "linux":
        from multiprocessing import forkserver

        pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped, by SIGSTOP or a debugger."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it has ended
        return False


def continue_process(pid: int) -> None:
    """Continue a process that was stopped, if there is one."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def signal_groups(leaders: Iterable[int], number: int) -> None:
    """Send a signal to the process groups that these processes lead, as far as there are any."""
    for pid in leaders:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)


def become_worker(name: str, *, cores: Iterable[int] | None = None, niceness: int = 0) -> None:
    """Set up the calling child process: title, signals, threads, heap, cores, and its end with the
    parent. It leads a process group, which the processes that its environments start belong to, so
    that they can be ended with it."""
    import setproctitle
    import torch

    setproctitle.setproctitle(f"sampleforge: {name}")
    os.setpgid(0, 0)
    outlive_signals()
    make_lasting()  # what an environment prints must not end it
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    keep_freed_memory()
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
    if niceness:
        os.nice(niceness)
    die_with_parent()


def outlive_signals() -> None:
    """Make this process ignore the signals that end the driver. A terminal, `timeout`, systemd and
    Slurm send them to the whole process group, but the driver needs the learner for a checkpoint,
    and then ends all workers itself, by the stop flag or SIGKILL.

    Programs that an environment starts are not affected: handlers, unlike SIG_IGN, do not survive
    exec, and forked children get the default handlers back, so that they can be terminated.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _OUTLIVED:
        signal.signal(number, _do_nothing)
        signal.siginterrupt(number, False)  # a simulator in C need not expect EINTR
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.register_at_fork(after_in_child=_end_by_signals)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal."""


def _end_by_signals() -> None:
    for number in _OUTLIVED:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.SIG_DFL)


def die_with_parent() -> None:
    """End this process when its parent has died, in any way.

    The parent's sentinel is a pipe whose other end only the parent holds. On Linux the kernel sends
    SIGKILL to this process's group when that end closes. So a process also dies if a simulator
    hangs in C and holds the interpreter's lock, which would stop a thread; and the processes that
    its environments have started die with it. (PDEATHSIG would watch the fork server, which
    outlives a killed driver as long as it has children.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process dies with its parent"
    if sys.platform == "linux":
        _kill_at_hangup(parent.sentinel)
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def end_with_parent() -> None:
    """Make the kernel kill this process, the fork server, when the thread that started it ends.

    Usually that is the main thread of the driver. If another thread has started the server, it
    stays for later sessions and ends when it notices that the driver has ended.
    """
    if sys.platform == "linux" and STARTED_BY_THREAD not in os.environ:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_at_hangup(pipe: int) -> None:
    """Make the kernel kill this process's group when the other end of ``pipe`` closes; end now if
    it has closed already."""
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if multiprocessing.connection.wait([pipe], 0):
        os._exit(1)


def end_descendants() -> None:
    """Kill all processes that this one and its children have started. On Linux only."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family - {os.getpid()}:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


CORE_SHARE = "SAMPLEFORGE_CORE_SHARE"
"""The environment variable of a process that is one of several, with the number of cores that it
may use, if it is not pinned to them."""


def available_cores() -> list[int]:
    """Return the numbers of the cores that this process may use, in order: no more than the CPU
    quota of its container or control group allows, or the share that it was given (`use_cores`)."""
    cores, quota = _allowed_cores(), cgroup_cpu_quota()
    share = int(os.environ.get(CORE_SHARE, len(cores)))
    return cores[: max(1, min(share, share if quota is None else math.ceil(quota)))]


def cores_to_pin() -> list[int]:
    """Return the numbers of the cores that processes can be pinned to; none if a CPU quota is worth
    fewer than this process may use. Such a quota is of time on any cores, and all containers of the
    machine would pin their processes to the same ones. None either if this process shares its cores
    with others and is not pinned itself."""
    cores = _allowed_cores()
    return cores if len(available_cores()) == len(cores) else []


def use_cores(cores: Sequence[int]) -> None:
    """Make this process, which shares cores with others of its kind, and the processes that it
    starts use ``cores``; where processes cannot be pinned, as many, wherever they run."""
    if cores_to_pin() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    else:
        os.environ[CORE_SHARE] = str(len(cores))


def _allowed_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

"""Commands without the start of an interpreter: forks of a process that has imported torch.

A test that runs `sampleforge ...` would otherwise spend 4 s of processor time on imports, once in
the command and once in the fork server that it starts. This module is both sides: `CommandServer`
is used by pytest, and `python -m tests.support.command_server FD` is the server, which imports what
a training imports and then does nothing but fork.

What a fork has in common with a command that was started by exec: it is a child of pytest, leads a
session, has the given arguments, folder, environment and streams, runs `sampleforge.cli` (or
train.py) as ``__main__``, and at its end waits for its threads and calls what is registered for it.
Its fork server is another process that was forked before the command began, so that it knows
nothing of the command, as one started by exec would. It differs in having all modules imported, and
in not taking them apart at the end, which is 0.2 s of processor time; in that the sources of flags
are read, and environments that no test changes are probed, once for all commands of a server; and
in that a run that cannot be opened and has changed its folder ends with an error that says so.
Where the start itself is the subject, or the environment names something that Python reads at its
start, a command is started by exec.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import process
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sampleforge.topologies.config import ALGOS
from tests.support import REPO

IMPORTED = (
    "setproctitle",
    *(ALGOS[algo].pairing.partition(":")[0] for algo in ALGOS),
    "sampleforge.runners.processes",
    "sampleforge.env.probe_child",
    "sampleforge.cli.train",
    "sampleforge.cli.running",
    "tensorboardX",
    "torch.fx.experimental.symbolic_shapes",  # by autograd, with gradients of several outputs
)
"""What a training command and its workers import. Not `sampleforge.runners.preload`: to import
it is an action of the fork server, which ends with the process that has started it from then on."""
MESSAGE = 1 << 18
"""Bytes of a request at most: the environment is most of it."""
SPARE_FD = 700
"""The number of the file by which a command reaches its spare, above those that it passes on."""
PR_SET_CHILD_SUBREAPER = 36
"""A constant of linux/prctl.h."""
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Request(NamedTuple):
    """A command to run; its three streams are passed with the request, and then other files."""

    words: list[str]
    """What follows `python`: a script and its arguments, -m, a module and its arguments, or -c and
    code, which is no command and needs no fork server."""
    cwd: str
    environment: dict[str, str]
    parent: int
    """The pid of the process that the command becomes a child of."""
    files: tuple[int, ...]
    """The numbers of the other files."""


class CommandServer:
    """The server of one pytest process, started with the first command. Close it at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()  # of one request and its answer

    @property
    def pid(self) -> int | None:
        """The server's pid, None before the first command."""
        return None if self._process is None else self._process.pid

    def popen(
        self, words: list[str], cwd: Path | str | None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Return the running `python *words`: by default without stdin, with stdout and stderr
        piped as text. ``options``: other streams, ``pass_fds`` and ``env``, as `subprocess.Popen`
        has them."""
        if not options:
            pipe = subprocess.PIPE
            options = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True}
        return _ForkedCommand(self, words, cwd, options)

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        """Start a command; return its pid. A server that has ended, as one does that is killed with
        all that a hanging test has started, is replaced."""
        with self._lock, _adopting_orphans():
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._start()
            assert self._socket is not None
            socket.send_fds(self._socket, [pickle.dumps(request)], list(streams))
            answer = self._socket.recv(MESSAGE)
        if not answer:
            raise RuntimeError("the command server has ended; its stderr says why")
        pid: int = pickle.loads(answer)
        return pid

    def close(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait()
            self._process = self._socket = None

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.command_server", str(theirs.fileno())],
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )


class _ForkedCommand(subprocess.Popen[Any]):
    """A child whose process the command server forks instead of fork and exec."""

    def __init__(
        self,
        server: CommandServer,
        words: list[str],
        cwd: Path | str | None,
        options: dict[str, Any],
    ) -> None:
        self._server, self._words = server, words
        super().__init__([sys.executable, *words], cwd=cwd, **options)

    def _execute_child(self, *args: Any) -> None:
        """Called by Popen's constructor, with all arguments by position."""
        pass_fds, cwd, env, ends = args[4], args[5], args[6], args[10:16]
        p2cread, _, _, c2pwrite, _, errwrite = ends
        environment = dict(os.environ if env is None else env)
        folder, files = str(cwd or os.getcwd()), tuple(map(int, pass_fds))
        request = Request(self._words, folder, environment, os.getpid(), files)
        try:
            self.pid = self._server.fork(request, (p2cread, c2pwrite, errwrite, *pass_fds))
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def popen_by_exec(words: list[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """Return what `CommandServer.popen` does, as a new interpreter; ``env``: variables to set."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


COMMAND_SERVER = CommandServer()
"""The server of this pytest process."""


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Make processes whose parent ends children of this one."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def serve(channel: socket.socket, probes: Path) -> None:
    """Fork a command per request until pytest closes the channel. SIGHUP is not ignored in them,
    also where the tests run under nohup. ``probes``: a folder where they keep what they probe."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE, 8)
        if not message:
            return
        request: Request = pickle.loads(message)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            become_command(request, streams, channel, probes)
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def become_command(
    request: Request, streams: Sequence[int], channel: socket.socket, probes: Path
) -> NoReturn:
    """Run a command in this process, which the server has forked for it. Raises what the command
    raises, other than SystemExit."""
    while os.getppid() != request.parent:  # the process between is about to end
        time.sleep(0.0005)
    os.setsid()
    channel.send(pickle.dumps(os.getpid()))
    channel.close()
    place(streams, [0, 1, 2, *request.files], inheritable=True)
    open_streams()
    enter(request.cwd)
    take_environment(request.environment)
    if request.words[0] != "-c":
        spawn_from_spare()
        if not is_script(request.words):
            remember_probes(probes)
    set_title([sys.executable, *request.words])
    try:
        run_as_main(request.words)
    except SystemExit as end:
        leave(end.code)
    leave(0)


def place(received: Sequence[int], numbers: Sequence[int], *, inheritable: bool) -> None:
    """Move open files to other numbers, of which some may be those of others among them."""
    above = max([*numbers, *received]) + 1
    moved = [os.dup2(one, above + place) for place, one in enumerate(received)]
    for one in received:
        os.close(one)
    for one, number in zip(moved, numbers, strict=True):
        os.dup2(one, number, inheritable=inheritable)
        os.close(one)


def open_streams() -> None:
    """Open the standard streams again, as those of the server know whether they can seek."""
    encoding = sys.stdout.encoding
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
    )


def enter(folder: str) -> None:
    """Make this the current folder, and that of the start: multiprocessing finds scripts there."""
    os.chdir(folder)
    process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]


def take_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # read from the environment again
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))


def set_title(words: Sequence[str]) -> None:
    import setproctitle

    setproctitle.setproctitle(" ".join(words))


def run_as_main(words: list[str]) -> None:
    """Do what `python *words` does: with -c, with -m, or with a script."""
    if words[0] == "-c":
        sys.argv[:] = ["-c"]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def is_script(words: Sequence[str]) -> bool:
    """Whether a user's script runs, which a probe imports, as it may register environments."""
    return words[0] != "-m" and Path(words[0]) != REPO / "train.py"


def remember_probes(folder: Path) -> None:
    # They import numpy, which pytest does later.
    from tests.support.probes import Remembered, with_probe

    remembered = Remembered(folder)
    for module in with_probe():
        module.probe = remembered  # type: ignore[attr-defined]


def leave(code: str | int | None) -> NoReturn:
    """End this process as an interpreter does that ends with `sys.exit(code)`, but for its modules,
    which are not taken apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


class ForkServerStart(NamedTuple):
    """What a fork server that is started by exec inherits, beside its open files."""

    words: list[str]
    cwd: str
    environment: dict[str, str]
    blocked: set[Any]
    open_files: tuple[int, int]


def spawn_from_spare() -> None:
    """Fork a spare process now, and let it become the fork server when multiprocessing starts
    one. If that server has ended, the next one is started by exec."""
    from multiprocessing import util

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spare = os.fork()
    if spare == 0:
        here.close()
        os.dup2(there.fileno(), SPARE_FD)
        there.close()
        be_spare()
    there.close()
    by_exec: Callable[..., int] = util.spawnv_passfds
    is_used = False

    def spawn(path: Any, words: list[str], files: Sequence[int]) -> int:
        nonlocal is_used
        if is_used or "multiprocessing.forkserver" not in words[-1]:
            return by_exec(path, words, files)
        is_used = True
        start = ForkServerStart(
            *(list(map(os.fsdecode, words)), os.getcwd(), dict(os.environ)),
            signal.pthread_sigmask(signal.SIG_BLOCK, []),
            resource.getrlimit(resource.RLIMIT_NOFILE),
        )
        with here:
            socket.send_fds(here, [pickle.dumps((start, list(files)))], list(files))
        return spare

    vars(util)["spawnv_passfds"] = spawn


def be_spare() -> NoReturn:
    """Wait until the command starts its fork server, and be it; end with the command otherwise."""
    # A Ctrl-C before the fork server starts is not meant for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with socket.socket(fileno=SPARE_FD) as channel:
        message, received, _, _ = socket.recv_fds(channel, MESSAGE, 16)
    if not message:
        os._exit(0)
    start, numbers = pickle.loads(message)
    place(received, numbers, inheritable=False)
    enter(start.cwd)
    take_environment(start.environment)
    resource.setrlimit(resource.RLIMIT_NOFILE, start.open_files)
    while signal.sigtimedwait(ENDING, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)
    set_title(start.words)
    sys.argv[:] = ["-c"]
    sys.path[0] = ""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        exec(start.words[-1], vars(main))
    except SystemExit as end:
        leave(end.code)
    leave(0)


def main() -> None:
    """Be the server, on the channel whose file number is the argument."""
    from sampleforge.runtime.imports import import_heavy

    import_heavy(*IMPORTED)
    from sampleforge.cli.train import parse_config
    from sampleforge.run.session import Session
    from tests.support.folders import opened_unchanged

    for algo in ALGOS:  # what is read of their classes is kept
        parse_config(algo, ["--env", "CartPole-v1"])
    gc.freeze()
    Session.open = opened_unchanged(Session.open)  # type: ignore[method-assign]
    # Now: the first title finds its place by that of the environment, which a command changes.
    set_title([sys.executable, "-m", "tests.support.command_server"])
    probes = tempfile.mkdtemp(prefix="sampleforge_tests_probes_")
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        serve(channel, Path(probes))
    shutil.rmtree(probes)


if __name__ == "__main__":
    # Under this module's own name, which the classes of pickled messages have.
    __import__("tests.support.command_server", fromlist=["main"]).main()

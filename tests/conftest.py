"""What every test gets, asked for or not: it may not hang, and it leaves nothing behind.

Hang: a test that takes longer than its limit fails with the stacks of this process and of its
children, and the children are killed. A `multiprocess` test has 60 s, any other 120 s, a `slow` one
an hour; `@pytest.mark.multiprocess(timeout=90)` sets another limit. There is none under `--pdb`.

Litter: a test fails if it leaves a process, a thread, a name in /dev/shm (one that can be told from
other programs' names: see `tests.support.litter`), a file in the checkout or in the current
directory. The current directory is an empty one of its own: what a simulator drops into it is
found, and the files of other programs are not taken for the test's.

Three processes are shared by all tests and therefore no litter: multiprocessing's fork server and
its resource tracker, and the server that forks commands (`tests.support.command_server`). Python
starts the first two with the first process or shared object, keeps them until the interpreter ends
and has no public way to stop them. Their children do count. All are stopped after the last test.

With pytest-xdist (`-n 3 --dist worksteal`) all this holds for each of its workers. Where a main
thread is stuck in C code, the worker ends, the test fails and another worker goes on.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from tests.support import REPO
from tests.support.command_server import COMMAND_SERVER, popen_by_exec
from tests.support.core import is_core, momentary
from tests.support.folders import IN_USE, named_in, opened_unchanged
from tests.support.litter import SESSION, Footprint
from tests.support.processes import (
    GRACE_S,
    RunCli,
    StartCli,
    end_session,
    kill,
    our_processes,
    own_stacks,
    session_members,
    stacks_of,
)

# Before numpy or torch is imported, here or in a child: one thread each.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
# A background job of a script ignores SIGINT, as jobs of many CI runners do, and so does what it
# starts: Python then has no handler for it. Children that are started by exec get the default back.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# For children, which do not get pytest's sys.path, and whose current directory is not the checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        str(REPO),
        str(REPO / "tests" / "support" / "pids"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)

# An import of torch makes this folder, also where TMPDIR is a test's own folder.
_torchs_cache = Path(tempfile.gettempdir(), "sampleforge_tests_torch")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_torchs_cache))

DEFAULT_TIMEOUT_S = 120.0
MARKED_TIMEOUT_S = {"slow": 3600.0, "multiprocess": 60.0}
BACKSTOP_S = 30.0
"""A main thread stuck inside C code never runs its signal handler. So long after the limit
faulthandler's own thread, which needs no interpreter, dumps the stacks and ends the session."""
_stderr_fd = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: its orphans stay in its group
        os.setpgid(0, 0)
    config.stash[_stderr_fd] = os.dup(2)  # during a test, fd 2 is pytest's capture file
    SESSION.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr_fd])
    SESSION.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("gpu") is not None:
        import torch  # here: tests without the marker need not import it

        if not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device")
    with deadline(item, "set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    core = item.get_closest_marker("core") is not None
    with deadline(item, "call"), momentary(item.nodeid) if core else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with deadline(item, "tear-down"):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the inner loop, before `-m core` selects them."""
    for item in items:
        marks = (marker.name for marker in item.iter_markers())
        core = is_core(marks, getattr(item, "fixturenames", ()))
        if core and item.path.is_relative_to(REPO):  # elsewhere the marker is not known
            item.add_marker(pytest.mark.core)


def timeout_of(item: pytest.Item) -> float:
    """Seconds that each phase of this test may take."""
    for name, default in MARKED_TIMEOUT_S.items():
        marker = item.get_closest_marker(name)
        if marker is not None:
            return float(marker.kwargs.get("timeout", default))
    return DEFAULT_TIMEOUT_S


@contextmanager
def deadline(item: pytest.Item, phase: str) -> Iterator[None]:
    """Fails what runs longer than the test's limit, with the stacks of every process concerned."""
    if item.config.getoption("usepdb"):
        yield
        return
    timeout = timeout_of(item)

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        children = psutil.Process().children(recursive=True)
        try:
            report = "\n".join([own_stacks(), *map(stacks_of, children)])
        finally:
            kill(children)
            forget_dead_fork_server()
        pytest.fail(f"{item.nodeid}: {phase} took more than {timeout:g} s\n{report}")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    stderr = item.config.stash[_stderr_fd]
    faulthandler.dump_traceback_later(timeout + BACKSTOP_S, exit=True, file=stderr)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


def forget_dead_fork_server() -> None:
    """Have multiprocessing start another fork server when it needs one. It would wait for the old
    one's exit code, which `kill` has had, and so would fail every later test of this process."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None or psutil.pid_exists(server._forkserver_pid):
        return
    os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


@pytest.fixture(scope="session")
def working_directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the current directory of each test. Beside those of `tmp_path`, which pytest
    counts before it makes another, each would make the next test slower."""
    return tmp_path_factory.mktemp("cwd")


@pytest.fixture(autouse=True)
def leaves_nothing_behind(
    working_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fails the test if it leaves a process, a thread, a name in /dev/shm or a file; ends the
    processes that it left, so that the next test starts clean."""
    cwd = Path(tempfile.mkdtemp(dir=working_directories))
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "path", [*sys.path])  # runs add the current directory
    before = Footprint.now(cwd)
    yield
    give_up_at = time.monotonic() + GRACE_S
    multiprocessing.active_children()  # reaps those that have ended
    while litter := Footprint.now(cwd).litter_since(before):
        if time.monotonic() > give_up_at:
            kill(list(our_processes() - before.processes))
            pytest.fail("the test left behind:\n" + "\n".join(litter), pytrace=False)
        gc.collect()
        time.sleep(0.05)
        multiprocessing.active_children()


@pytest.fixture(autouse=True)
def probe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of this process probe an environment of a library once; commands always do."""
    # They import numpy: after the threads are set.
    from tests.support.probes import remembered_probe, with_probe

    for module in with_probe():
        monkeypatch.setattr(module, "probe", remembered_probe)


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """OMP_NUM_THREADS holds for torch's import; this undoes what an earlier test has set."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def stop_multiprocessing_helpers() -> Iterator[None]:
    """Private methods, written for CPython's own tests; there are no public ones."""
    yield
    COMMAND_SERVER.close()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    gc.collect()  # objects that would call the tracker, and so start it again, when they go
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture
def start_cli(tmp_path: Path) -> Iterator[StartCli]:
    """`start_cli("train", "appo", ..., cwd=None, env=None)` -> Popen of the `sampleforge` command;
    with a first word that ends in .py, of that script, "train.py" being the checkout's. It has a
    session of its own, no stdin, stdout and stderr piped as text, and `tmp_path` as current
    directory. It is a fork of the command server, or with an `env` (which may be empty) a process
    started by exec, which takes seconds to import torch.

    What still runs at the end of the test is killed, with all its processes. If the command itself
    has ended and one of its processes has not after `GRACE_S`, the test fails."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *args: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        script = list(args) if args[0].endswith(".py") else ["-m", "sampleforge", *args]
        if args[0] == "train.py":
            script[0] = str(REPO / "train.py")
        if env is None and sys.platform == "linux":
            process = COMMAND_SERVER.popen(script, cwd or tmp_path)
        else:
            process = popen_by_exec(script, cwd or tmp_path, env or {})
        started.append(process)
        return process

    yield start
    leftovers = [line for process in started for line in end_session(process)]
    if leftovers:
        report = "\n".join(leftovers)
        pytest.fail(f"the command has ended and left processes behind:\n{report}", pytrace=False)


@pytest.fixture
def run_cli(start_cli: StartCli, tmp_path: Path) -> RunCli:
    """`run_cli(*args, timeout=60, **as_start_cli)` -> CompletedProcess of `start_cli(*args)`,
    whatever its exit code. One that is refused must leave all that it names as it was. A command
    that takes longer fails the test, with what it printed and the stacks of its processes."""

    def run(
        *args: str,
        timeout: float = 60.0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        before = named_in(args, cwd or tmp_path)
        process = start_cli(*args, cwd=cwd, env=env)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            members = session_members(process.pid)
            stacks = "\n".join(map(stacks_of, members))
            kill(members)
            stdout, stderr = process.communicate()
            pytest.fail(f"{' '.join(args)}: more than {timeout:g} s\n{stdout}\n{stderr}\n{stacks}")
        if process.returncode == 2 and IN_USE not in stderr:
            assert named_in(args, cwd or tmp_path) == before, f"a refused command: {stderr}"
        assert "a refused run has changed" not in stderr, stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture(autouse=True)
def refusals_change_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that cannot be opened, whatever the reason, leaves its run folder as it was. So it
    is in the commands of the command server."""
    module = sys.modules.get("sampleforge.run.session")
    if module is not None:
        monkeypatch.setattr(module.Session, "open", opened_unchanged(module.Session.open))

"""The gates of conftest.py close: each test here runs pytest on a small file that does wrong."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from tests.support.processes import StartCli, kill, session_members
from tests.support.variants import slow

pytestmark = pytest.mark.multiprocess


HEADER = """
import os, subprocess, sys, threading, time, pytest
import tests.conftest, tests.support.probes, tests.support.processes  # numpy: before any limit
tests.conftest.GRACE_S = tests.support.processes.GRACE_S = 0.5
tests.conftest.DEFAULT_TIMEOUT_S = 40.0  # a hang is told by the inner pytest, before ours is ended
"""


WORKERS = ["-n", "2", "--dist", "worksteal"]


def outcome_of(tmp_path: Path, body: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with our conftest on one file; ``more``: further options. What it has printed is
    shown if the test's own limit ends it; what a worker that is killed leaves in the directory for
    temporary files goes."""
    file = tmp_path / "test_subject.py"
    file.write_text(f"{HEADER}\n{body}\n")
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-c", "/dev/null", *more, str(file)]
    printed = tmp_path / "printed.txt"
    scratch = tempfile.TemporaryDirectory(prefix="inner-", ignore_cleanup_errors=True)
    try:
        with scratch as temporary, printed.open("w") as out:
            env = {**os.environ, "TMPDIR": temporary}
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    except BaseException:
        print(printed.read_text())
        raise
    return subprocess.CompletedProcess(command, done.returncode, printed.read_text())


LITTER = {
    "process": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
    "orphan": "subprocess.run('sleep 60 >/dev/null 2>&1 &', shell=True)",
    "thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "file": "open('litter.txt', 'w').close()",
    "name": "fd = os.open(f'/dev/shm/NAME-{os.getpid()}', os.O_CREAT); os.close(fd)",
    "name of a child that has ended": "subprocess.run([sys.executable, '-c', "
    "'import os; os.close(os.open(f\"/dev/shm/NAME-{os.getpid()}\", os.O_CREAT))'])",
    "name of a fork that was killed": "pid = os.fork()\n    if not pid: "
    "os.open(f'/dev/shm/NAME-{os.getpid()}', os.O_CREAT); os.kill(os.getpid(), 9)\n"
    "    os.waitpid(pid, 0)",
    "name that is held": "pytest.held = open('/dev/shm/NAME-held', 'w')",
    "name of shared memory": "from multiprocessing import shared_memory, resource_tracker\n"
    "    block = shared_memory.SharedMemory(create=True, size=8); block.close()",
}


def test_litter_fails_the_test_and_is_named(tmp_path: Path) -> None:
    """Of every kind, each in a test of its own."""
    name, kinds = f"sampleforge-litter-{secrets.token_hex(4)}", list(LITTER)
    tests = [
        f"def test_{number}():\n    {LITTER[kind].replace('NAME', f'{name}-{number}')}"
        for number, kind in enumerate(kinds)
    ]
    try:
        done = outcome_of(tmp_path, "\n".join(tests))
    finally:
        for left in Path("/dev/shm").glob(f"{name}*"):
            left.unlink()
    assert done.returncode == 1, done.stdout
    blamed = re.split(r"ERROR at teardown of test_(\d+)", done.stdout)
    assert blamed[1::2] == [str(number) for number in range(len(kinds))], done.stdout
    named = {"orphan": "process", "file": "litter.txt", "name of shared memory": "/dev/shm/ps"}
    for number, (kind, said) in enumerate(zip(kinds, blamed[2::2], strict=True)):
        of_name = f"{name}-{number}" if kind.startswith("name") else kind
        assert "the test left behind" in said, kind
        assert named.get(kind, of_name) in said.split("the test left behind")[1], (kind, said)


def test_names_of_other_programs_are_not_blamed_on_the_test(tmp_path: Path) -> None:
    """Whether the program has them open or not, and whatever their names carry: its own pid, a
    counter that equals a pid of the test's, or the pid that a process of an earlier test had."""
    name = f"sampleforge-other-{secrets.token_hex(4)}"
    random = secrets.randbits(32)
    plain, with_pid, held = (
        Path("/dev/shm", text) for text in (name, f"torch_{os.getpid()}_{random}_0", f"{name}-held")
    )
    earlier, begun = tmp_path / "earlier", tmp_path / "begun"
    body = f"""
def test_earlier():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    open({str(earlier)!r}, "w").write(str(child.pid))
def test_it():
    open({str(begun)!r}, "w").write(str(os.getpid()))
    while not os.path.exists({str(held)!r}):
        time.sleep(0.01)
"""

    def other_program() -> None:
        while not (begun.exists() and begun.read_text()) and not stop.is_set():
            time.sleep(0.01)
        counted.append(with_pid.with_name(f"torch_{os.getpid()}_{random}_{begun.read_text()}"))
        counted.append(plain.with_name(f"{name}-{earlier.read_text()}"))
        for path in (plain, with_pid, *counted):
            path.touch()
        files.append(held.open("w"))

    stop = threading.Event()
    files: list[IO[str]] = []
    counted: list[Path] = []
    thread = threading.Thread(target=other_program)
    thread.start()
    try:
        done = outcome_of(tmp_path, body)
    finally:
        stop.set()
        thread.join()
        for file in files:
            file.close()
        for path in (plain, with_pid, held, *counted):
            path.unlink(missing_ok=True)
    assert done.returncode == 0, done.stdout


def test_other_jobs_of_the_script_that_runs_pytest_are_not_the_tests(tmp_path: Path) -> None:
    """They are in pytest's process group and may start while a test runs; a job's name in /dev/shm
    is open, and its own processes come and go."""
    name = Path("/dev/shm", f"sampleforge-other-{secrets.token_hex(4)}")
    (tmp_path / "test_subject.py").write_text(f"""
import time
from pathlib import Path
def test_it():
    Path({str(tmp_path / "begun")!r}).touch()
    while not Path({str(name)!r}).exists():
        time.sleep(0.01)
""")
    job = f"while [ ! -e {tmp_path}/begun ]; do sleep 0.05; done; exec 9>{name}; sleep 60; true"
    pytest_options = f"-q -p tests.conftest -p no:cacheprovider --rootdir {tmp_path} -c /dev/null"
    script = f"""
({job}) >/dev/null & job=$!
{sys.executable} -m pytest {pytest_options} {tmp_path}/test_subject.py
status=$?
kill $job
exit $status
"""
    (tmp_path / "temporary").mkdir()  # of its own: pytest empties the folders of earlier sessions
    env = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True, env=env
    )
    try:
        shown, _ = process.communicate(timeout=50)
    finally:
        kill(session_members(process.pid))
        name.unlink(missing_ok=True)
    assert process.returncode == 0, shown


def test_forkserver_and_tracker_are_stopped_at_the_end(tmp_path: Path) -> None:
    body = """
import multiprocessing
from multiprocessing import shared_memory
def test_it():
    process = multiprocessing.get_context("forkserver").Process(target=print)
    process.start()
    process.join()
    shared = shared_memory.SharedMemory(create=True, size=8)
    shared.close()
    shared.unlink()
"""
    done = outcome_of(tmp_path, body)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("more", [slow([]), WORKERS], ids=["one process", "workers"])
def test_a_hang_ends_with_all_stacks_and_the_session_goes_on(
    tmp_path: Path, more: list[str]
) -> None:
    if more:
        pytest.importorskip("xdist")
    body = """
from multiprocessing import forkserver
@pytest.mark.multiprocess(timeout=5)
def test_hang():
    forkserver.ensure_running()
    command = "import time; time.sleep(60)"
    subprocess.run([sys.executable, "-c", command])
def test_next():
    forkserver.ensure_running()
"""
    done = outcome_of(tmp_path, body, *more)
    assert done.returncode == 1
    assert "call took more than 5 s" in done.stdout
    assert "in test_hang" in done.stdout  # our stack
    assert "time.sleep(60)" in done.stdout.partition("--- process")[2]  # the child, by its command
    assert "1 failed, 1 passed" in done.stdout


def test_a_worker_that_is_stuck_in_c_code_ends_with_its_stack_and_another_goes_on(
    tmp_path: Path,
) -> None:
    pytest.importorskip("xdist")
    body = """
import itertools
tests.conftest.BACKSTOP_S = 1
@pytest.mark.multiprocess(timeout=4)
def test_stuck():
    sum(itertools.repeat(1))
def test_next():
    pass
"""
    done = outcome_of(tmp_path, body, *WORKERS)
    assert done.returncode == 1
    assert "in test_stuck" in done.stdout.split("Timeout (0:00:05)!")[1]
    assert "crashed while running 'test_subject.py::test_stuck'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_litter_is_blamed_on_the_worker_whose_test_has_left_it(tmp_path: Path) -> None:
    """An orphan and names in /dev/shm, which are there while the test of another worker ends."""
    pytest.importorskip("xdist")
    name = f"/dev/shm/sampleforge-litter-{secrets.token_hex(4)}"
    body = f"""
from pathlib import Path
BEGUN, LEFT = Path({str(tmp_path / "begun")!r}), Path({str(tmp_path / "left")!r})
def until(file):
    while not file.exists():
        time.sleep(0.01)
def test_leaves_litter():
    until(BEGUN)
    subprocess.run("sleep 60 >/dev/null 2>&1 &", shell=True)
    pytest.held = open("{name}-held", "w")
    open(f"{name}-{{os.getpid()}}", "w").close()
    LEFT.touch()
    time.sleep(4 * tests.conftest.GRACE_S)  # the other test's search ends before this test's
def test_leaves_nothing():
    BEGUN.touch()
    until(LEFT)
"""
    try:
        done = outcome_of(tmp_path, body, *WORKERS)
    finally:
        for left in Path("/dev/shm").glob(f"{Path(name).name}*"):
            left.unlink()
    assert done.returncode == 1
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_leaves_litter" in done.stdout
    found = done.stdout.split("the test left behind")[1]
    assert "process" in found and f"{name}-held" in found and found.count(name) >= 2


def test_a_command_that_leaves_a_process_is_caught(tmp_path: Path) -> None:
    body = """
def test_it(start_cli, monkeypatch):
    script = "import subprocess; subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3)"
    monkeypatch.setattr(tests.conftest, "REPO", tests.conftest.Path(os.getcwd()).parent)
    (tests.conftest.REPO / "train.py").write_text(script)
    start_cli("train.py").wait()
"""
    done = outcome_of(tmp_path, body)
    assert done.returncode == 1
    assert "left processes behind" in done.stdout


def test_start_cli_ends_what_still_runs(start_cli: StartCli) -> None:
    """Its own tear-down and leaves_nothing_behind are the assertions."""
    assert start_cli("train.py", "--help").pid > 0

"""Finding, describing and ending the processes that tests start."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import psutil

from tests.support.command_server import COMMAND_SERVER

StartCli = Callable[..., "subprocess.Popen[str]"]
RunCli = Callable[..., "subprocess.CompletedProcess[str]"]
"""What the fixtures `start_cli` and `run_cli` of conftest.py give."""
GRACE_S = 15.0
"""Processes, threads and names may take so long to go. The project promises 5 s after a kill;
beside other tests on a busy machine everything takes longer."""


def our_processes() -> frozenset[psutil.Process]:
    """Descendants, and orphans: members of our process group whose parent has died."""
    me = psutil.Process()
    shared = helpers()
    children = me.children(recursive=True) if may_have_children() else []
    descendants = [child for child in children if child.pid not in shared]
    family = {me.pid, *shared, *ancestors()}
    group = [
        other
        for other in psutil.process_iter()
        if other.pid not in family and group_of(other.pid) == os.getpgrp()
    ]
    return frozenset([*descendants, *(other for other in group if is_orphan(other, ancestors()))])


def may_have_children() -> bool:
    """Whether this process has children, or cannot tell. To look for them reads the state of every
    process of the machine, twice for each test."""
    lists = [*Path("/proc/self/task").glob("*/children")]
    try:
        return not lists or any(children.read_text() for children in lists)
    except OSError:  # a thread has ended
        return True


@cache
def ancestors() -> frozenset[int]:
    """The pids of those from whom this process descends."""
    return frozenset(parent.pid for parent in psutil.Process().parents())


def is_orphan(member: psutil.Process, ancestors: frozenset[int]) -> bool:
    """Whether a member of our process group, or one of its parents in the group, has lost its
    parent, and so has init or another process outside of the group instead. Otherwise it descends
    from an ancestor of ours: it is another job of the script that runs pytest."""
    try:
        lineage = [parent.pid for parent in member.parents()]
    except psutil.NoSuchProcess:
        return False
    kin = [pid for pid in lineage if pid in ancestors and pid != 1]
    return not (kin and group_of(kin[0]) == os.getpgrp())


def helpers() -> set[int]:
    """The pids of multiprocessing's fork server and resource tracker, and of the server that forks
    commands, as far as they run."""
    server: Any = forkserver._forkserver  # private, as there are no public names
    tracker: Any = resource_tracker._resource_tracker
    pids = (server._forkserver_pid, tracker._pid, COMMAND_SERVER.pid)
    return {pid for pid in pids if pid is not None}


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def session_members(leader: int) -> list[psutil.Process]:
    """The living processes of the session that this process leads or led."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # it ended while we looked
    return members


def end_session(process: subprocess.Popen[str]) -> list[str]:
    """Ends all processes of the command's session; describes those that outlived the command."""
    outlived = process.poll() is not None
    give_up_at = time.monotonic() + GRACE_S
    while outlived and session_members(process.pid) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    members = session_members(process.pid)
    description = [str(member) for member in members] if outlived else []
    kill(members)
    process.communicate()
    return description


def own_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return f"--- stacks of pytest, {os.getpid()}\n{file.read()}"


def stacks_of(process: psutil.Process) -> str:
    """A child's Python stacks: py-spy's, where it is installed; else the child's own dump, if it
    has a handler for SIGUSR1 (the dump goes to its stderr, which pytest shows)."""
    try:
        command_line = " ".join(process.cmdline())[:200]
        title = f"--- process {process.pid} ({process.status()}): {command_line}"
        spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if spy is not None:
            command = [spy, "dump", "--nonblocking", "--pid", str(process.pid)]
            dump = subprocess.run(command, capture_output=True, text=True, timeout=10)
            return f"{title}\n{dump.stdout}{dump.stderr}"
        if catches(process.pid, signal.SIGUSR1):
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            return f"{title}\nsee the captured stderr"
        return f"{title}\nno py-spy, and no handler for SIGUSR1"
    except psutil.NoSuchProcess:
        return f"--- process {process.pid} has just ended"


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, which without one would kill it."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return False
    lines = status.read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has ended by itself in the meantime
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)

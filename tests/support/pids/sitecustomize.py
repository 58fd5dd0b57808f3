"""Note which processes are of this test session: Python imports this module when it starts, because
conftest.py puts its folder on PYTHONPATH. The pid goes into the session's list, by which a name in
/dev/shm that carries it is known to be ours; see `tests.support.litter`."""

from __future__ import annotations

import os


def note_pid() -> None:
    """Append our pid to the list. Not if the session is over and its list is gone."""
    try:
        handle = os.open(os.environ["SAMPLEFORGE_TEST_PIDS"], os.O_WRONLY | os.O_APPEND)
    except (KeyError, FileNotFoundError):
        return
    os.write(handle, f"{os.getpid()}\n".encode())
    os.close(handle)


note_pid()
os.register_at_fork(after_in_child=note_pid)

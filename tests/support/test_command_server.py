"""A forked command is what one started by exec would be."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command_server import COMMAND_SERVER, popen_by_exec

pytestmark = pytest.mark.multiprocess
SCRIPT = """
import json, os, signal, sys
import __main__
if __name__ == "__main__":
    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "file": __main__.__file__, "cwd": os.getcwd(),
        "environment": os.environ.get("SAMPLEFORGE_TEST_WORD"),
        "leader": os.getsid(0) == os.getpid(), "seeks": sys.stdout.seekable(),
        "parent": os.getppid(), "open": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "command": open("/proc/self/cmdline").read().replace(chr(0), " ").strip(),
    }))
    print("to stderr", file=sys.stderr)
    sys.exit(3)
"""
SERVER = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from sampleforge.runtime import processes

def look(channel):
    import __main__
    channel.send({
        "parent": os.getppid(), "session": os.getsid(0), "group": os.getpgid(0),
        "files": __import__("resource").getrlimit(7), "cwd": os.getcwd(),
        "secret": "SECRET" in vars(processes), "word": os.environ.get("SET_BEFORE_THE_SERVER"),
        "of_driver": [name for name in ("driver_only",) if name in sys.modules],
    })

if __name__ == "__main__":
    processes.SECRET = 1
    sys.modules["driver_only"] = sys
    os.environ["SET_BEFORE_THE_SERVER"] = "here"
    signal.signal(signal.SIGTERM, lambda *_: None)
    processes.start_fork_server()
    context = processes.process_context()
    ours, theirs = context.Pipe()
    child = context.Process(target=look, args=(theirs,))
    child.start()
    found = ours.recv()
    child.join()
    from multiprocessing import forkserver
    server = forkserver._forkserver._forkserver_pid
    print(json.dumps({**found, "server": server, "pid": os.getpid(), "code": child.exitcode,
                      "limit": __import__("resource").getrlimit(7)}))
"""


def outcome(how: str, words: list[str], cwd: Path) -> tuple[int, dict[str, Any], str]:
    """Run `python *words` by fork or by exec; return its exit code, what it says of itself, and its
    stderr."""
    process = COMMAND_SERVER.popen(words, cwd) if how == "fork" else popen_by_exec(words, cwd, {})
    stdout, stderr = process.communicate(timeout=40)
    return process.returncode, json.loads(stdout), stderr


def test_a_forked_script_finds_what_one_started_by_exec_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLEFORGE_TEST_WORD", "as it is now")
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    by_fork, by_exec = (
        outcome(how, [str(script), "one", "two words"], tmp_path) for how in ("fork", "exec")
    )
    assert by_fork == by_exec
    code, found, stderr = by_fork
    assert (code, stderr) == (3, "to stderr\n")
    assert found["leader"] and found["parent"] == os.getpid() and found["cwd"] == str(tmp_path)
    assert found["environment"] == "as it is now" and found["open"] == [0, 1, 2]


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_its_fork_server_inherits_from_the_command_what_exec_passes_on_and_nothing_else(
    tmp_path: Path, how: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SERVER)
    code, found, _ = outcome(how, [str(script), os.environ["PYTHONPATH"].split(":")[0]], tmp_path)
    assert code == 0 and found["code"] == 0
    assert found["parent"] == found["server"]
    assert found["session"] == found["group"] == found["pid"]
    assert found["files"] == found["limit"] and found["cwd"] == str(tmp_path)
    assert found["word"] == "here"
    assert not found["secret"] and not found["of_driver"]


def test_a_killed_command_has_the_exit_code_of_its_signal_and_its_spare_ends(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    process = COMMAND_SERVER.popen([str(script)], tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    spares = psutil.Process(process.pid).children()
    assert len(spares) == 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not psutil.wait_procs(spares, timeout=20)[1]


def test_orphans_are_not_adopted_once_a_command_has_started(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.fork() and 1)")
    before = set(psutil.Process().children())
    process = COMMAND_SERVER.popen([str(script)], tmp_path)
    process.communicate(timeout=20)
    assert set(psutil.Process().children()) <= before | {psutil.Process(COMMAND_SERVER.pid)}


def test_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('done')")
    for _ in range(2):
        assert COMMAND_SERVER.popen([str(script)], tmp_path).communicate()[0] == "done\n"
        before = COMMAND_SERVER.pid
        assert before is not None
        psutil.Process(before).kill()
        psutil.wait_procs([psutil.Process(before)], timeout=20)
    COMMAND_SERVER.close()

"""The start of processes, their signals, and the heap of a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

import sampleforge
from sampleforge.runtime.processes import process_context, start_fork_server

PROGRAM = """
from sampleforge.runtime.processes import process_context, start_fork_server

if __name__ == "__main__":
    start_fork_server()
    process = process_context().Process(target=print, args=("it runs",))
    process.start()
    process.join()
"""


@pytest.mark.multiprocess(timeout=60)
def order_of_gpus(answer: Connection) -> None:
    answer.send(os.environ.get("CUDA_DEVICE_ORDER"))


@pytest.mark.multiprocess
def test_a_worker_numbers_the_gpus_as_the_driver_s_tools_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the figures of a GPU would be those of another one."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    context: Any = process_context()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    ours, theirs = context.Pipe()
    process = context.Process(target=order_of_gpus, args=(theirs,))
    process.start()
    assert ours.recv() == "PCI_BUS_ID"
    process.join()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    process_context()
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST", "as the user has set it"


def test_a_long_path_of_temporary_files_leaves_room_for_addresses(tmp_path: Path) -> None:
    script, long = tmp_path / "script.py", tmp_path / ("x" * 100)
    script.write_text(PROGRAM)
    long.mkdir()
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TMPDIR": str(long)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "it runs\n"
    assert list(long.iterdir()) == []


def test_threads_may_start_the_fork_server_at_once() -> None:
    """As sessions of several threads do; what one has put into its environment is not taken away by
    another."""
    together, errors = Barrier(4), []

    def start() -> None:
        try:
            for _ in range(50):
                together.wait(30)
                start_fork_server(("json",))
        except Exception as error:
            errors.append(error)
            together.abort()

    threads = [Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and "SAMPLEFORGE_FORK_SERVER_IMPORTS" not in os.environ


ALLOCATES = """
import resource, sys
import numpy as np
from sampleforge.runtime.processes import keep_freed_memory

def update():
    arrays = [np.empty(1 << 20) for _ in range(5)]  # 8 MB each
    for array in arrays:
        array.fill(1.0)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    assert keep_freed_memory()
update()
update()
before = faults()
for _ in range(10):
    update()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    """Pages that ten updates of 40 MB touch for the first time, after two others."""
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATES, how],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    assert page_faults("default") > 10_000, "the loss that the setting prevents"
    assert page_faults("kept") < 100


OF_A_COPY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import sampleforge
from sampleforge.runtime.processes import process_context, start_fork_server

def where(said):
    said.send((sampleforge.__file__, os.environ.get("PYTHONPATH")))

if __name__ == "__main__":
    start_fork_server()
    listening, said = process_context().Pipe(duplex=False)
    worker = process_context().Process(target=where, args=(said,))
    worker.start()
    assert listening.poll(100)
    found, path = listening.recv()
    worker.join()
    assert found == sampleforge.__file__, (found, sampleforge.__file__)
    assert path == os.environ.get("PYTHONPATH") == (sys.argv[2] or None), path
    print(found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")
@pytest.mark.parametrize("path", ["", os.sep])
def test_workers_import_the_copy_of_the_package_that_the_driver_has(
    tmp_path: Path, path: str
) -> None:
    """Python 3.11 gives the fork server no search path, so that it imported the copy that is
    installed, and workers of another version unpickled what this one had sent."""
    copy, script = tmp_path / "copy", tmp_path / "script.py"
    copy.mkdir()
    (copy / "sampleforge").symlink_to(Path(sampleforge.__file__).parent)
    script.write_text(OF_A_COPY)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": path} if path else {}
    run = subprocess.run(
        [sys.executable, script, copy, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(copy / "sampleforge" / "__init__.py")


AFTER_A_RUN = """
import multiprocessing, sys
from sampleforge.config import ConfigError
from sampleforge.runtime.processes import start_fork_server

def begin():
    try:
        start_fork_server()
    except ConfigError as error:
        sys.exit(str(error))

if __name__ == "__main__":
    start_fork_server()
    start_fork_server()
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=begin)
        process.start()
        process.join()
        print(process.exitcode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")
def test_a_process_that_was_forked_after_a_run_is_told_to_be_spawned(tmp_path: Path) -> None:
    """It took the fork server of the other one for its own child: 'No child processes'."""
    script = tmp_path / "script.py"
    script.write_text(AFTER_A_RUN)
    run = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stdout.split() == ["1", "0"], run.stderr
    assert "get_context('spawn')" in run.stderr


TWICE = """
from multiprocessing import forkserver
from sampleforge.runtime.processes import start_fork_server

if __name__ == "__main__":
    forkserver.ensure_running()
    start_fork_server()
    start_fork_server()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")
def test_its_own_fork_server_is_known_where_proc_numbers_processes_otherwise(
    tmp_path: Path,
) -> None:
    """As in a PID namespace whose /proc is the host's."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"]).returncode:
        pytest.skip("may make no PID namespace")
    script = tmp_path / "script.py"
    script.write_text(TWICE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*apart, sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr

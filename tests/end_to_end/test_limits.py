"""A machine that gives little: a small /dev/shm, one processor, few open files, no HOME, no locale,
a folder that takes no file. A command runs as usual, or ends with a clear message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.support.processes import end_session
from tests.support.runs import summary, train

CGROUPS = Path("/sys/fs/cgroup")
POOR = (
    *("env", "-u", "HOME", "-u", "LC_CTYPE", "LANG=C", "LC_ALL=C"),
    *("bash", "-c", 'ulimit -n 256; exec "$@"', "bash"),
)
"""No HOME, no locale, 256 open files."""
CORES = "from sampleforge.runtime.processes import available_cores; print(len(available_cores()))"

pytestmark = pytest.mark.multiprocess(timeout=120)


def mounted(script: str) -> tuple[str, ...]:
    """The beginning of a command that has mounts of its own, which ``script`` makes."""
    return ("unshare", "--mount", "bash", "-c", f'set -e; {script}; exec "$@"', "bash")


@pytest.fixture
def may_mount() -> None:
    tried = subprocess.run([*mounted("mount -t tmpfs none /mnt"), "true"], capture_output=True)
    if tried.returncode:
        pytest.skip(f"this user may not mount: {tried.stderr.decode().strip()}")


@pytest.fixture
def one_cpu() -> Iterator[Path]:
    """A control group whose processes together have the time of one processor."""
    parent = CGROUPS / "cpu" if (CGROUPS / "cpu").is_dir() else CGROUPS
    group = parent / f"sampleforge-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this user may not make a control group: {error}")
    try:
        if (group / "cpu.cfs_quota_us").exists():  # version 1
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("100000 100000")
        else:
            pytest.skip("the control groups of this machine do not limit processors")
        yield group
    finally:
        group.rmdir()


def run(
    before: tuple[str, ...], words: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a training command after ``before``; no process and no temporary file may be left."""
    scratch = folder / "tmp"
    scratch.mkdir()
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "sampleforge", *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        left = end_session(process)
    assert left == []
    assert list(scratch.iterdir()) == []
    scratch.rmdir()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def test_a_run_finishes_with_64_mb_of_dev_shm_one_cpu_256_open_files_and_no_home(
    may_mount: None, one_cpu: Path, tmp_path: Path
) -> None:
    """Shared memory has no names, so the size of /dev/shm does not matter; the number of actors
    follows from the quota."""
    limits = f"mount -t tmpfs -o size=64m none /dev/shm; echo $$ > {one_cpu}/cgroup.procs"
    before = (*mounted(limits), *POOR)
    counted = subprocess.run(
        [*before, sys.executable, "-c", CORES], capture_output=True, text=True, check=True
    )
    assert counted.stdout.strip() == "1"
    words = train("CartPole-v1", "--train-for-env-steps", "6000", run_dir="mein Läufer 1")
    at = words.index("--num-workers")
    del words[at : at + 2]
    done = run(before, words, tmp_path)
    assert done.returncode == 0 and done.stderr == "", done
    folder = tmp_path / "mein Läufer 1"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert summary(folder)["status"] == "finished" and summary(folder)["updates"] > 0
    assert yaml.safe_load((folder / "config.yaml").read_text("utf-8"))["num_workers"] == 1


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    """Shared memory is a file without a name, and counts."""
    before = ("bash", "-c", 'ulimit -f 100; exec "$@"', "bash")
    done = run(before, train("CartPole-v1"), tmp_path)
    assert done.returncode == 2, done
    assert "limit on the size of a file" in done.stderr and "ulimit -f unlimited" in done.stderr
    assert "more memory" not in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [("ro", "Read-only file system"), ("size=8k", "No space left on device")],
    ids=["read-only", "full"],
)
def test_a_disk_that_takes_no_file_is_refused_with_the_reason(
    may_mount: None, tmp_path: Path, options: str, reason: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = (*mounted(f"mount -t tmpfs -o {options} none '{disk}'"), *POOR)
    done = run(before, train("CartPole-v1", run_dir="disk/run"), tmp_path)
    assert done.returncode in (1, 2), done
    assert reason in done.stderr.rstrip().splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr
    with suppress(FileNotFoundError):
        disk.rmdir()
    assert list(tmp_path.iterdir()) == []

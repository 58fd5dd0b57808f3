"""The probe: a test of an environment in a child process before anything else starts.

An environment that cannot be imported, raises, hangs or gives bad observations leads to an error
message within seconds, and this process has not imported any of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import spawn
from typing import IO, Any

from sampleforge.config import ConfigError, to_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.scratch import make_cwd_importable
from sampleforge.env.spec_json import spec_from_plain
from sampleforge.spec import EnvSpec

GRACE_S = 2.0
"""Seconds after the time-out at which the child is killed. At the time-out it dumps its stacks and
ends itself, unless it cannot."""

CHILD = """
import json, sys
payload = json.loads(sys.stdin.readline())
sys.path[:] = payload["path"]
from sampleforge.env.probe_child import main
main(payload)
"""


class EnvProbeError(ConfigError):
    """The environment failed its probe; the root cause is the last line of the message."""


class EnvFailed(EnvProbeError):
    """The environment raised an error, hangs, or ended its process."""

    exit_code = 1


def probe(config: EnvConfig) -> EnvSpec:
    """Return the spec of ``config.env``, after constructing, resetting and stepping two rows of it.

    Raises EnvProbeError with the child's traceback, or with its stacks if a row's construction or
    reset, or a step of both rows, took longer than ``config.env_timeout`` seconds. No process is
    left in any case.
    """
    if ":" in config.env:
        make_cwd_importable()
    read_end, write_end = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="sampleforge-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile() as output,
        os.fdopen(read_end, "rb") as answers,
    ):
        try:
            child = _start(config, write_end, output, scratch)
        finally:
            os.close(write_end)
        try:
            answer = _read(child, answers, config.env_timeout + GRACE_S)
            if answer is not None:
                child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass  # it has answered but does not end; `_end` kills it
        finally:
            _end(child)
        return _result(config, answer, child.returncode, _printed(output))


def _start(
    config: EnvConfig, write_end: int, output: IO[bytes], scratch: str
) -> subprocess.Popen[bytes]:
    """Start the child, in a process group and a directory of its own, with the payload in its
    stdin."""
    main = _main_module()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[write_end],
        process_group=0,
        cwd=scratch,
    )
    path = [os.path.abspath(entry) for entry in sys.path]
    payload = {"config": _own_part(config), "path": path, "fd": write_end, "main": main}
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; its output says why
        child.stdin.write(json.dumps(payload).encode() + b"\n")
        child.stdin.flush()  # it stays open: when it closes, the child knows that we have ended
    return child


def _main_module() -> dict[str, Any]:
    """Return the location of the main module, for the child to import it as multiprocessing's
    children do: it may register environments, or be the module of the factory.

    Raises RuntimeError if this process is in such an import itself: a script without ``if __name__
    == "__main__"`` would start itself for ever.
    """
    data = spawn.get_preparation_data("probe")
    return {name: value for name, value in data.items() if name.startswith("init_main")}


def _own_part(config: EnvConfig) -> dict[str, Any]:
    """Return the fields of EnvConfig alone: ``config`` may be the config of a whole run."""
    names = EnvConfig.__dataclass_fields__
    return {name: value for name, value in to_plain(config).items() if name in names}


def _read(child: subprocess.Popen[bytes], answers: IO[bytes], limit: float) -> bytes | None:
    """Return the child's line, or the part of it that was written when the child ended; None if
    nothing is written for ``limit`` seconds. The end of the pipe is no sign that the child has
    ended, because a simulator's processes may keep it open."""
    answer, deadline = b"", time.monotonic() + limit
    reader = select.poll()  # not select(), which takes no descriptors from 1024 on
    reader.register(answers, select.POLLIN)
    while time.monotonic() < deadline:
        ended = child.poll() is not None
        part = b""
        ready = bool(reader.poll(0 if ended else 50))
        if ready:
            part = os.read(answers.fileno(), 1 << 16)
            answer += part
            deadline = time.monotonic() + limit
        if answer.endswith(b"\n") or ((ready or ended) and not part):
            return answer.strip()
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's whole process group: a simulator may have processes of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()


def _printed(output: IO[bytes]) -> str:
    """Return the end of the child's output."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 20_000))
    return output.read().decode(errors="replace").strip()


def _result(config: EnvConfig, answer: bytes | None, code: int, printed: str) -> EnvSpec:
    """Return the spec in the answer. Raises EnvProbeError if it holds an error, or is missing."""
    if answer:
        message = json.loads(answer)
        if "spec" in message:
            return spec_from_plain(message["spec"])
        kind = EnvFailed if "Traceback (" in message["error"] else EnvProbeError
        raise kind(message["error"])
    if answer is None or "Timeout (" in printed:
        raise EnvFailed(
            f"{printed}\n{config.env} hangs: its construction, a reset or a step took more than "
            f"{config.env_timeout:g} s (the stacks are above); --env-timeout sets the limit"
        )
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise EnvFailed(f"{printed}\n{config.env} ended its process in the probe, with {how}")

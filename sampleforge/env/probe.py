"""The probe: a test of an environment in a child process before anything else starts.

An environment that cannot be imported, raises, hangs or gives bad observations leads to an error
message within seconds, and this process has not imported any of it. `child_messages` does other
work on an environment in a child process of the same kind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import spawn
from typing import IO, Any, NamedTuple

from sampleforge.config import ConfigError, to_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.given import GivenEnv
from sampleforge.env.interface import Stage
from sampleforge.env.spec_json import spec_from_plain
from sampleforge.env.user_code import keeps_directory, make_cwd_importable
from sampleforge.runtime.causes import causes
from sampleforge.runtime.processes import MissingMainGuard, check_main_guard, forget_piped_main
from sampleforge.spec import EnvSpec

log = logging.getLogger(__name__)

GRACE_S = 2.0
"""Seconds after the time-out at which the child is killed. At the time-out it dumps its stacks and
ends itself, unless it cannot."""

CHILD = """
import json, os, sys
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
payload = json.loads(sys.stdin.readline())
sys.path[:] = payload["path"]
from sampleforge.env.probe_child import main
main(payload)
"""


class ChildWork(NamedTuple):
    """What a child process does with an environment. ``name``: of the work, in messages;
    ``function``: "module:name", which only the child imports. It is called with the config, a
    function that sends a message, a dict, and the options of the work; it returns what else is in
    the last message, or None."""

    name: str
    function: str


PROBE = ChildWork("probe", "sampleforge.env.probe_child:try_rows")


class EnvProbeError(ConfigError):
    """The environment failed its probe. ``cause``: the errors behind it in one line; ``stage``:
    what was done to the environment, None if that is not known."""

    def __init__(self, text: str, stage: Stage | None = None) -> None:
        super().__init__(text)
        self.cause = causes(text)
        self.stage = stage

    @property
    def what(self) -> str:
        """What has happened, as the beginning of a message."""
        return f"could not be {self.stage}" if self.stage else "failed"


class EnvFailed(EnvProbeError):
    """The environment raised an error, ended its process, or ``hangs``."""

    exit_code = 1
    hangs = False


class Silent(Exception):
    """The child has written nothing for too long."""


def probe(
    config: EnvConfig,
    warn: Callable[[str], None] = log.warning,
    not_closed: Callable[[str], None] | None = None,
) -> EnvSpec:
    """Return the spec of ``config.env``, after constructing, resetting and stepping two rows of it;
    one row, if a process can have no second one. With --her the rewards of goals are tried, too.

    Raises EnvProbeError with the child's traceback, or with its stacks if a row's construction or
    reset, or a step of both rows, took longer than ``config.env_timeout`` seconds. Raises
    MissingMainGuard, which is no error but the end of the program, if the script that calls this
    would do so again where the child imports it. No process is left in any case. ``warn`` is told
    what is no error: that a process can have one row only, numbers beyond their bounds,
    observations of another type than their space's, and, unless ``not_closed`` is there to be told
    it, a ``close`` that fails.
    """
    tried = _Tried(config, 2)
    if tried.second_row_failed and tried.failed is not None:
        alone = _Tried(config, 1)
        if alone.spec is not None:
            warn(
                f"{config.env}: a second one in the same process {tried.failed.what} "
                f"({tried.failed.cause}), so each worker has one env row"
            )
            groups = (replace(group, one_per_process=True) for group in alone.spec.other_groups)
            alone.spec = replace(alone.spec, one_per_process=True, other_groups=tuple(groups))
        tried = alone  # what one row fails by is the first thing to correct
    if tried.spec is None:
        assert tried.failed is not None
        raise tried.failed
    for text in tried.warnings:
        warn(text)
    if tried.closing:
        (not_closed or warn)(
            f"{config.env}: its close() {tried.closing}; training goes on, but what the "
            "environment has started may be left behind: correct close()"
        )
    return tried.spec


class _Tried:
    """What so many rows of an environment have done in a child process: their spec, with what there
    is to warn of and what ``close`` did wrong, or how they ``failed``."""

    def __init__(self, config: EnvConfig, rows: int) -> None:
        self.spec: EnvSpec | None = None
        self.warnings: list[str] = []
        self.closing = ""
        self.failed: EnvFailed | None = None
        self._made = False
        try:
            goals = bool(getattr(config, "her", False))
            for message in child_messages(config, PROBE, rows=rows, goals=goals):
                self._take(message)
        except EnvFailed as error:
            if self.spec is None:
                self.failed = error
            else:
                self.closing = error.cause

    def _take(self, message: dict[str, Any]) -> None:
        self._made = self._made or "made" in message
        if "spec" in message:
            self.spec = spec_from_plain(message["spec"])
            self.warnings = message["warnings"]
        elif message.get("closing"):
            self.closing = f"raised {causes(message['closing'])}"

    @property
    def second_row_failed(self) -> bool:
        """Whether the first row was made before they failed, other than by a time-out."""
        return self.failed is not None and self._made and not self.failed.hangs


def child_messages(
    config: EnvConfig, work: ChildWork, **options: float
) -> Iterator[dict[str, Any]]:
    """Do ``work`` on ``config.env`` in a child process, and yield its messages; ``options`` are
    those of the work. The errors are those of `probe`."""
    if ":" in config.env:
        make_cwd_importable()
    read_end, write_end = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="sampleforge-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile() as output,
        os.fdopen(read_end, "rb") as answers,
    ):
        try:
            child = _start(config, {"work": work, "options": options}, write_end, output, scratch)
        finally:
            os.close(write_end)
        last, hangs, stage = None, False, None
        try:
            for line in _lines(child, answers, config.env_timeout + GRACE_S):
                last = json.loads(line)
                stage = last.pop("stage", stage)
                if not last.pop("goes_on", False):
                    child.wait(GRACE_S)
                    break
                yield last
        except Silent:
            hangs = True
        except subprocess.TimeoutExpired:
            pass  # it has answered but does not end; `_end` kills it
        finally:
            _end(child)
        ended = Ended(child.returncode, _printed(output), hangs, stage)
        yield _checked(config, work.name, last, ended)


def _start(
    config: EnvConfig, work: dict[str, Any], write_end: int, output: IO[bytes], scratch: str
) -> subprocess.Popen[bytes]:
    """Start the child, in a process group of its own and with ``scratch`` for temporary files, with
    the payload in its stdin."""
    main = _main_module()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],  # no module of the working directory but by its path
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[write_end],
        process_group=0,
        cwd=None if keeps_directory(config.env) else scratch,
        env={**os.environ, "TMPDIR": scratch},
    )
    path = [os.path.abspath(entry) for entry in sys.path]
    payload = {"config": _own_part(config), "path": path, "fd": write_end, "main": main, **work}
    if isinstance(config.env, GivenEnv):
        payload["pickled"] = config.env.pickled.hex()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; its output says why
        child.stdin.write(json.dumps(payload).encode() + b"\n")
        child.stdin.flush()  # it stays open: when it closes, the child knows that we have ended
    return child


def _main_module() -> dict[str, Any]:
    """Return the location of the main module, the working directory and the arguments of the
    command, for the child to import it as multiprocessing's children do: it may register
    environments, or be the module of the factory.

    Raises MissingMainGuard if this process is in such an import itself: a script without ``if
    __name__ == "__main__"`` would start itself for ever.
    """
    check_main_guard()
    forget_piped_main()
    data = spawn.get_preparation_data("probe")
    return {
        name: value
        for name, value in data.items()
        if name in ("sys_argv", "dir") or name.startswith("init_main")
    }


def _own_part(config: EnvConfig) -> dict[str, Any]:
    """Return the fields of EnvConfig alone: ``config`` may be the config of a whole run."""
    names = EnvConfig.__dataclass_fields__
    return {name: value for name, value in to_plain(config).items() if name in names}


def _lines(child: subprocess.Popen[bytes], answers: IO[bytes], limit: float) -> Iterator[bytes]:
    """Yield the child's lines, until it has ended. The end of the pipe is no sign of that, because
    a simulator's processes may keep it open. Raises Silent if nothing is written for ``limit``
    seconds."""
    text, deadline = b"", time.monotonic() + limit
    reader = select.poll()  # not select(), which takes no descriptors from 1024 on
    reader.register(answers, select.POLLIN)
    while time.monotonic() < deadline:
        ended = child.poll() is not None
        part = b""
        ready = bool(reader.poll(0 if ended else 50))
        if ready:
            part = os.read(answers.fileno(), 1 << 16)
            *whole, text = (text + part).split(b"\n")
            yield from whole
            deadline = time.monotonic() + limit
        if (ready or ended) and not part:
            return
    raise Silent


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


class Ended(NamedTuple):
    """The end of the child: its exit code, what it has printed, whether it was killed because it
    was silent, and in which stage it was."""

    code: int
    printed: str
    hangs: bool
    stage: Stage | None


def _checked(
    config: EnvConfig, work: str, last: dict[str, Any] | None, ended: Ended
) -> dict[str, Any]:
    """Return ``last``, the child's last message. Raises EnvProbeError if it is an error, or not the
    end of the work (``last`` is None or has been yielded), and MissingMainGuard if our script would
    start itself in the child."""
    code, printed, hangs, stage = ended
    if last and "error" in last:
        kind = EnvFailed if "Traceback (" in last["error"] else EnvProbeError
        raise kind(last["error"], stage)
    if last and last.get("unguarded"):
        raise MissingMainGuard(os.path.basename(sys.argv[0]))
    if last and last.get("done"):
        return last
    has_stacks = "Timeout (" in printed
    hangs = hangs or has_stacks
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if stage == "closed":
        what = "hangs" if hangs else f"ended its process, with {how}"
        raise EnvFailed(_below(printed, what), stage)
    if hangs:
        failed = EnvFailed(
            _below(
                printed,
                f"{config.env} hangs: its construction, a reset or a step took more than "
                f"{config.env_timeout:g} s{' (the stacks are above)' if has_stacks else ''}; "
                "--env-timeout sets the limit",
            )
        )
        failed.hangs = True
        raise failed
    raise EnvFailed(_below(printed, f"{config.env} ended its process in the {work}, with {how}"))


def _below(printed: str, text: str) -> str:
    """Return ``text`` on a line below what the child has ``printed``, if that is anything."""
    return f"{printed}\n{text}" if printed else text

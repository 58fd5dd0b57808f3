"""ViZDoom's engine is a process per environment; here it is started so that nothing outlives us.

By itself it survives the process that started it, killed or not, and leaves three names in /dev/shm
(10 MB), an ini file and a folder in the working directory. Here, on Linux:

- the kernel kills it when the thread that started it dies, which is as long as the game is open;
- its names in /dev/shm are removed as soon as both sides have them mapped;
- its working directory is a temporary one, which is removed once it has started.

So a started engine has nothing to clean up. For the 0.2 s of its start a guard, a shell in a
session of its own, waits for the word that all is well, and cleans up if it hears the end of the
pipe instead.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAUNCHER = """#!/bin/sh
exec {python} -I -S -c {code} {engine} "$@"
"""
# Runs as the engine's own process and becomes it. Ctrl-C goes to the whole process group, and what
# it means is the driver's business; ignored signals stay ignored. PR_SET_PDEATHSIG is 1.
BECOME_ENGINE = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != {parent}:
    os._exit(1)
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.closerange(3, 4096)
os.chdir({folder!r})
os.execv(sys.argv[1], sys.argv[1:])
"""
# Nobody has mapped the names of a dead engine; 0.5 s is for those that are dying.
GUARD = """
read word && exit
sleep 0.5
for name in /dev/shm/ViZDoom*; do
    grep -qsF "$name" /proc/[0-9]*/maps || rm -f "$name"
done
rm -rf "$0"
"""


def start(game: Any) -> None:
    """``game.init()`` of a configured DoomGame."""
    with our_signals():
        if sys.platform != "linux":
            game.init()
            return
        with tempfile.TemporaryDirectory(prefix="sampleforge-doom-") as folder, guarded(folder):
            game.set_vizdoom_path(str(_launcher(Path(folder))))
            game.set_doom_config_path(os.devnull)  # or it complains at its end that it cannot write
            game.init()
            _unlink_shared_memory()


def stop(game: Any) -> None:
    """Ends the engine. May be called twice."""
    with our_signals():
        game.close()


def _launcher(folder: Path) -> Path:
    """A program in ``folder`` that becomes the engine."""
    import vizdoom

    engine = Path(vizdoom.__file__).parent / "vizdoom"
    code = BECOME_ENGINE.format(parent=os.getpid(), folder=str(folder))
    text = LAUNCHER.format(
        python=shlex.quote(sys.executable), code=shlex.quote(code), engine=shlex.quote(str(engine))
    )
    path = folder / "launch"
    path.write_text(text)
    path.chmod(0o700)
    return path


def _unlink_shared_memory() -> None:
    """Remove the names of all games that this process has mapped; the memory stays until both
    processes are gone."""
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"/dev/shm/ViZDoom\w+$", maps, re.MULTILINE)):
        Path(name).unlink(missing_ok=True)


@contextmanager
def guarded(folder: str) -> Iterator[None]:
    """Have an engine's names and ``folder`` removed if this process dies meanwhile."""
    command = ["/bin/sh", "-c", GUARD, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.communicate(b"done\n")


@contextmanager
def our_signals() -> Iterator[None]:
    """Keep the signal handlers that there are: ViZDoom takes SIGINT, SIGTERM and SIGABRT over when
    a game starts, and sets them to their defaults when it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)
    handlers = [(number, signal.getsignal(number)) for number in taken]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)

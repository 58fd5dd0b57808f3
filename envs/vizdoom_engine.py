"""The start and end of ViZDoom's engine, a process per environment, without leftovers.

By default an engine survives the process that started it, and leaves three names in /dev/shm
(10 MB), an ini file, and a folder in the working directory. With this module, on Linux:

- the kernel kills the engine when the thread that started it ends;
- its names in /dev/shm are removed as soon as both processes have mapped them;
- its working directory is temporary, and removed after the start.

So a started engine has nothing to clean up. During the 0.2 s of the start, a guard (a shell in its
own session) waits for a line on a pipe, and cleans up if the pipe closes before.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAUNCHER = """#!/bin/sh
exec {python} -I -S -c {code} {engine} "$@"
"""
# This program becomes the engine. Ctrl-C goes to the whole process group, but only the driver acts
# on it; ignored signals stay ignored after exec. PR_SET_PDEATHSIG is 1.
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
# No process has mapped the names of a dead engine; 0.5 s let dying engines end.
GUARD = """
read word && exit
sleep 0.5
for name in /dev/shm/ViZDoom*; do
    grep -qsF "$name" /proc/[0-9]*/maps || rm -f "$name"
done
rm -rf "$0"
"""


_HANDLERS: dict[int, Any] = {}
"""The signal handlers of this process, as they were before a game set others."""


def start(game: Any) -> None:
    """Start the engine of a configured DoomGame."""
    with keep_signal_handlers():
        if sys.platform != "linux":
            game.init()
            return
        with tempfile.TemporaryDirectory(prefix="sampleforge-doom-") as folder, guarded(folder):
            game.set_vizdoom_path(str(_launcher(Path(folder))))
            game.set_doom_config_path(os.devnull)  # otherwise it prints an error at its end
            game.init()
            _unlink_shared_memory()


def start_together(games: Sequence[Any], threads: ThreadPoolExecutor) -> None:
    """Start the engines of several configured DoomGames, which wait for each other, each in one of
    as many ``threads``. The engines end with these."""
    with keep_signal_handlers():
        if sys.platform != "linux":
            list(threads.map(lambda game: game.init(), games))
            return
        with tempfile.TemporaryDirectory(prefix="sampleforge-doom-") as folder, guarded(folder):
            for player, game in enumerate(games):
                own = Path(folder) / str(player)
                own.mkdir()  # two engines that make one `_vizdoom` at once: one ends
                game.set_vizdoom_path(str(_launcher(own)))
                game.set_doom_config_path(os.devnull)
            list(threads.map(lambda game: game.init(), games))
            _unlink_shared_memory()


def stop(game: Any) -> None:
    """End the engine; a second call is allowed."""
    with keep_signal_handlers():
        game.close()


def _launcher(folder: Path) -> Path:
    """Write a program into ``folder`` that becomes the engine; return its path."""
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
    """Remove the names of the shared memory of all games that this process has mapped. The memory
    itself stays until both processes have ended."""
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"/dev/shm/ViZDoom\w+$", maps, re.MULTILINE)):
        Path(name).unlink(missing_ok=True)


@contextmanager
def guarded(folder: str) -> Iterator[None]:
    """Return a context in which a guard removes the engine's names and ``folder`` if this process
    dies."""
    command = ["/bin/sh", "-c", GUARD, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.communicate(b"done\n")


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Return a context that restores the signal handlers at its end: ViZDoom sets handlers for
    SIGINT, SIGTERM and SIGABRT when a game starts, and sets the defaults when it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)
    for number in taken:
        handler = signal.getsignal(number)
        if handler is not None:  # not ViZDoom's: one that starts in a thread may set its own late
            _HANDLERS[number] = handler
    handlers = [(number, _HANDLERS.get(number, signal.SIG_DFL)) for number in taken]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)

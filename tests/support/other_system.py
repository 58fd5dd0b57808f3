"""Python as on a system that is not Linux. A copy of this file, named sitecustomize.py in a folder
of PYTHONPATH, takes what Linux alone has from every process that is started with it."""

from __future__ import annotations

import builtins
import importlib
import io
import os
import sys
from typing import Any

DEPENDENCIES = """
ctypes fcntl select selectors socket subprocess tempfile shutil platform asyncio
multiprocessing.popen_spawn_posix numpy torch gymnasium psutil faster_fifo setproctitle tyro yaml
rich matplotlib.pyplot onnx onnxruntime onnxscript
"""
"""Imported before, because they have been built for this system."""
OF_LINUX = {
    "os": "memfd_create sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise eventfd "
    "pidfd_open copy_file_range splice",
    "fcntl": "F_SETSIG F_SETPIPE_SZ F_ADD_SEALS",
    "select": "epoll",
}
FOLDERS = ("/proc", "/dev/shm", "/sys")


def hide_linux() -> None:
    """Change this process: sys.platform is darwin, the functions and folders of Linux are not
    there, but for psutil."""
    for name in DEPENDENCIES.split():
        importlib.import_module(name)
    sys.platform = "darwin"
    for module, names in OF_LINUX.items():
        for name in names.split():
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)
    builtins.open = io.open = _without_folders(open)  # type: ignore[assignment]
    os.stat = _without_folders(os.stat)
    os.scandir = _without_folders(os.scandir)
    os.listdir = _without_folders(os.listdir)


def _without_folders(function: Any) -> Any:
    def checked(path: Any = ".", *args: Any, **named: Any) -> Any:
        is_hidden = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(FOLDERS)
        if is_hidden and "psutil" not in sys._getframe(1).f_code.co_filename:
            raise FileNotFoundError(2, "not on this system", os.fspath(path))
        return function(path, *args, **named)

    return checked


if __name__ == "sitecustomize":
    hide_linux()

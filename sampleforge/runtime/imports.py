"""Fast import of torch and of the modules that import it."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Callable

_THREAD = "sampleforge: imports"


def import_heavy(*names: str) -> None:
    """Import modules with the garbage collector off, and exempt their objects from it permanently.

    These modules create 180,000 objects, none of them garbage, which the collector would visit
    again and again: during the import (1.7 s of processor time; 1.3 s without the collector), at
    the end of the interpreter (0.6 s; 0.15 s without these objects), and in a forked child, where
    a visit copies their memory pages.
    """
    if "torch" in sys.modules:  # a user's program, whose own objects must not be exempted
        for name in names:
            importlib.import_module(name)
        return
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()


def import_beside(*names: str) -> Callable[[], None]:
    """Begin `import_heavy` in a thread; return a function that waits for its end and raises what it
    raised. A process that is interrupted meanwhile need not wait: see `is_importing`."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            import_heavy(*names)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=_THREAD, daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        if errors:
            raise errors[0]

    return wait


def is_importing() -> bool:
    """Return whether a thread of `import_beside` runs. An interpreter that ends while it loads
    torch's libraries may crash or wait for it: such a process must end by ``os._exit``."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
